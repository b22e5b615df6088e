"""Error bands of predicted steps, read off published ones. Enters: judged rows, or a cluster and a
plan. Leaves: `Band`: within which share 90 % of the rows like it were, held out.

Rows are alike if their GPUs are of one generation, their models both have experts or both have
none, and their kernels are both fused or both not. Where fewer than LEAST rows are, those of either
kernels count; of models without experts then all of the GPU. The bands that come with Meshwright
are written by `meshwright validate published --held-out --bands FILE`. A GPU of which nobody
published a step has no band, nor have experts where nobody published any, nor steps that are
shorter than all of them, nor what is priced by measured operators: these rows judged the rates of
kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from meshwright.cluster.cluster import Cluster
from meshwright.cost.tables import is_measured
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.validate.csv_table import embedded_table
from meshwright.validate.published.machines import software_of

if TYPE_CHECKING:
    from meshwright.validate.published.predicted_rows import JudgedRow

FILE = "published_bands.json"
LEAST = 6
"""Rows that a band rests on, at least."""
SHORTEST = 0.07
"""Seconds of a step: none of the rows that were judged is shorter."""
QUANTILE = 0.9
EXPERTS, DENSE = "mixtures of experts", "dense models"
EAGER, FUSED = "eager", "fused kernels"
LIKE = {"H200": "H100"}
"""Chips that are judged by rows of others: an H200 is an H100 with other memory."""
ROUTED = "routed_experts"


class Band(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far predictions of one kind were from published steps."""

    share: float
    """90 % of the rows were within it."""
    rows: int
    of: str
    """What they are of: "H100, dense models"."""
    own: bool = False
    """Whether they are steps of this very machine, all within the share."""

    def __str__(self) -> str:
        if self.own:
            return f"all {self.rows} steps measured on this machine were within ±{self.share:.0%}"
        return f"90 % of {self.rows} published steps ({self.of}) were within ±{self.share:.0%}"


def gpu_generation(name: str) -> str:
    """The generation of a GPU, as devices and rows call it.

    >>> [gpu_generation(name) for name in ("H100-SXM5-80GB", "gb200_nvl72_186gb", "tpu7x")]
    ['H100', 'GB200', 'TPU7X']
    """
    return re.split(r"[-_ ]", name.upper().replace("TPU-V", "TPU+V"))[0].replace("+", "-")


def bands_of(judged: Iterable[JudgedRow]) -> dict[str, Band]:
    """Bands by what they are of, from rows that were held out."""
    errors: dict[str, list[float]] = defaultdict(list)
    for it in judged:
        if it.ratio is not None:
            fuses = software_of(it.row).fuses
            for of in _kinds(gpu_generation(it.row.gpu), routed="MoE" in it.row.note, fuses=fuses):
                errors[of].append(abs(it.ratio - 1))
    return {
        of: Band(
            share=round(float(np.quantile(deviations, QUANTILE)), 4), rows=len(deviations), of=of
        )
        for of, deviations in sorted(errors.items())
        if len(deviations) >= LEAST
    }


def _kinds(chip_name: str, *, routed: bool, fuses: bool) -> tuple[str, str, str]:
    """What a step on a chip is one of, the narrowest first."""
    models = f"{chip_name}, {EXPERTS if routed else DENSE}"
    return f"{models}, {FUSED if fuses else EAGER}", models, chip_name


@cache
def shipped_bands() -> Mapping[str, Band]:
    """Those that come with Meshwright."""
    return msgspec.json.decode(embedded_table(FILE), type=dict[str, Band])


def band_of(cluster: Cluster, plan: Plan | OperatorGraph, step: float) -> Band | None:
    """The band of a plan's predicted step, in seconds; None if nobody published such a step."""
    device, graph = cluster.device, plan.graph if isinstance(plan, Plan) else plan
    if device.judged is not UNSET:
        return Band(share=device.judged.share, rows=device.judged.steps, of=cluster.name, own=True)
    if is_measured(device) or step < SHORTEST:
        return None
    name, bands = gpu_generation(device.name), shipped_bands()
    routed = any(operator.kind == ROUTED for operator in graph.operators)
    kinds = _kinds(LIKE.get(name, name), routed=routed, fuses=device.running.fuses)
    # What other models reach says nothing of experts.
    return next((bands[of] for of in kinds[: 2 if routed else 3] if of in bands), None)


def inside(band: Band | None, faster: float) -> bool:
    """Whether a plan that is so many times as fast may owe that to the error of predictions.

    >>> inside(Band(share=0.2, rows=9, of="H100"), 1.1), inside(None, 1.1)
    (True, False)
    """
    return band is not None and abs(faster - 1) < band.share
