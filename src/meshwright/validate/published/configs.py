"""Parallel configuration (TP, PP, CP, DP, EP, ZeRO) of a published row. Enters: a row. Leaves: a
`ParallelConfig`, the samples of a step and the dtype, with what had to be assumed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    ParallelConfig,
)
from meshwright.configs.written import summed_by
from meshwright.plan.options import LAYERWISE
from meshwright.validate.published.rows import PublishedRow

HYBRID = "hsdp"
"""Shards within a machine, copies of them across."""

COPIES = ("BigScience", "Sailor", "Megatron-LM README 2021", "vTrain")
"""Sources that keep norms and residuals whole on every device of the tensor axis."""

ZERO = {"0": 0, "1": 1, "2": 2, "3": 3, HYBRID: 3, "": 3, "not stated": 0}
"""ZeRO's stage as rows say it. Rows that say nothing are of TPUs (FSDP) or, "not stated", of
Sailor."""

AGAIN = ("full", "custom", "policy per recipe")
"""Recomputation of whole layers; MaxText's policies run most of a layer again."""

ORDERS = (INNERMOST_FIRST, PIPELINE_INSIDE)
"""How ranks may be numbered, the usual way first."""

FOLDING = ("Megatron-Bridge", "NVIDIA dgxc", "MLPerf")
"""Sources whose recipes spread whole experts over the tensor axis, too."""

FSDP = "torchtitan"
"""Whose FSDP all rows with ZeRO 2 or 3 are taken to have: no source says that it has no_sync."""

FROZEN = "LoRA"
"""The word in a note that says that weights are not trained."""


class PublishedLayout(NamedTuple):
    """A row's configuration."""

    config: ParallelConfig
    samples: int
    """In a step."""
    dtype: str
    frozen: bool
    """Whether only norms are trained: adapters' own weights are too few to count."""
    assumed: tuple[str, ...]


def published_layout(row: PublishedRow, stages: int, machine: int) -> PublishedLayout:
    """The configuration of a row whose model has so many layers, on machines of so many devices."""
    if row.gpus is None or row.global_batch is None:
        raise InputError(f"{row.model}: gpus or global_batch is missing", "fill them in")
    assumed = []
    tensor, pipeline, context = row.tp or 1, row.pp or 1, row.cp or 1
    data, left = divmod(row.gpus, tensor * pipeline * context)
    if left:
        raise InputError(
            f"{row.gpus} devices are no multiple of tp {tensor} x pp {pipeline} x cp {context}",
            "give degrees that multiply to the devices",
        )
    if row.dp is not None and row.dp != data:
        assumed.append(f"data {data} instead of {row.dp}, to fill {row.gpus} devices")
    each, rest = divmod(row.global_batch, data)
    if rest:
        raise InputError(
            f"a global batch of {row.global_batch} does not divide by data {data}",
            "give one that does",
        )
    micro_batches = _micro_batches(row, each, pipeline, assumed)
    chunks = _chunks(row, pipeline, micro_batches, stages, assumed)
    config = ParallelConfig(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=_expert(row, data * context * (tensor if _folded(row) else 1), assumed),
        folded=_folded(row),
        chunks=chunks,
        micro_batches=micro_batches,
        zero=_zero(row, pipeline) if data * context > 1 else 0,
        recompute=row.recompute.lower() in AGAIN,
        sequence=tensor > 1 and not row.source.startswith(COPIES),
        uneven=True,
        bucket=LAYERWISE,
        early=True,
        mixed="pure" not in row.dtype and _dtype(row) != "float32",
    )
    if row.zero.lower() == HYBRID and machine % config.inside_data == 0:
        config = config.with_replicas(max(1, data * config.inside_data // machine))
    config = summed_by(FSDP, config)
    return PublishedLayout(
        config, row.global_batch, _dtype(row), FROZEN in row.note, tuple(assumed)
    )


def _dtype(row: PublishedRow) -> str:
    if row.dtype.startswith("fp16"):
        return "float16"
    if row.dtype.startswith(("fp32", "float32")):
        return "float32"
    return "bfloat16"


def _zero(row: PublishedRow, pipeline: int) -> int:
    """ZeRO's stage; in a pipeline FSDP keeps gathered parameters, as torchtitan does by default."""
    stage = ZERO.get(row.zero.lower(), 1)
    return min(stage, 2) if pipeline > 1 else stage


def _micro_batches(row: PublishedRow, each: int, pipeline: int, assumed: list[str]) -> int:
    """How many a step has."""
    size = row.micro_batch
    if size is None:
        size = 1 if pipeline > 1 else each
        assumed.append(f"micro-batches of {size}, which are not given")
    count = -(-each // size)
    if each % count:
        count = min((n for n in divisors(each) if n >= count), default=each)
        assumed.append(f"{count} micro-batches, which divide {each} samples")
    return count


def _chunks(
    row: PublishedRow, pipeline: int, micro_batches: int, layers: int, assumed: list[str]
) -> int:
    """Virtual stages a device."""
    chunks = row.vp or 1
    if pipeline == 1 or chunks == 1:
        return 1
    if micro_batches % pipeline:
        assumed.append(f"no virtual stages: {pipeline} do not divide {micro_batches} micro-batches")
        return 1
    if pipeline * chunks > layers and pipeline * chunks != layers + 2:
        fewer = max(1, layers // pipeline)
        assumed.append(f"{fewer} virtual stages instead of {chunks}, for {layers} layers")
        return fewer
    return chunks


def _folded(row: PublishedRow) -> bool:
    """Whether no expert is cut by the tensor axis: Megatron's recipes, unless they say it."""
    cut = re.search(r"expert TP (\d+)", row.note)
    return cut[1] == "1" if cut else row.source.startswith(FOLDING)


def _expert(row: PublishedRow, among: int, assumed: list[str]) -> int:
    """The degree of experts, over devices of the axes among which they are spread."""
    wanted = row.ep or 1
    if "MoE" not in row.note or among % wanted == 0:
        return wanted if "MoE" in row.note else 1
    degree = max(n for n in divisors(among) if wanted % n == 0)
    assumed.append(f"experts {degree} ways instead of {wanted}, on {among} devices")
    return degree
