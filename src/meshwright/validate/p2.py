"""Predictions against the measurements of P², Appendix A. Enters: rows of its table. Leaves: one
comparison for each measured time; what is measured and what is predicted never share a field.

The paper sums 2^29 floats on each GPU and runs each program ten times. The printed seconds agree
with the known bandwidths of both systems only if they are those of all ten runs together
(docs/validation.md), so that is how they are read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Literal

import msgspec

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import Program
from meshwright.collectives.predict import PricedProgram
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Algorithm
from meshwright.search.rank import Ranker, Reduction
from meshwright.validate.p2_rows import CLUSTERS, P2Row

PAYLOAD = Bytes(4 << 29)
RUNS = 10

Kind = Literal["allreduce", "optimal"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")


class P2Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time beside its prediction."""

    row: P2Row
    algorithm: Algorithm
    kind: Kind
    measured_s: Seconds
    predicted_s: Seconds
    program: Program
    link: str
    """The link that sets the pace of the slowest step."""
    aligned: bool
    """Whether collapsing in axis order, as the paper did, gives the levels of the hardware."""
    axis_order_s: Seconds
    """The prediction with levels in axis order, as the paper ran it; the same where aligned."""

    @property
    def error(self) -> float:
        """Predicted against measured: +0.1 is ten per cent too slow."""
        return self.predicted_s / self.measured_s - 1


def compare(rows: Iterable[P2Row]) -> list[P2Comparison]:
    """Every measured time of the rows beside its prediction."""

    @cache
    def rankers(gpu: str, nodes: int, gpus: int, algorithm: Algorithm) -> tuple[Ranker, Ranker]:
        pricer = Pricer(Cluster.named(CLUSTERS[gpu], node=nodes, gpu=gpus), NCCL, algorithm)
        return Ranker(pricer, rules="paper"), Ranker(pricer, rules="paper", kind="axis")

    return [
        comparison
        for row in rows
        for algorithm in ALGORITHMS
        for comparison in _compare(
            row, algorithm, *rankers(row.gpu, row.nodes, row.gpus_per_node, algorithm)
        )
    ]


def _compare(
    row: P2Row, algorithm: Algorithm, hardware: Ranker, by_axis: Ranker
) -> Iterator[P2Comparison]:
    reduction = Reduction(tuple(map(str, row.reduce_axes)), PAYLOAD)
    on_hardware, on_axes = (
        ranker.price(row.placement, reduction) for ranker in (hardware, by_axis)
    )
    aligned = len({_levels(ranker, row, reduction) for ranker in (hardware, by_axis)}) == 1
    kinds: tuple[tuple[Kind, PricedProgram, PricedProgram], ...] = (
        ("allreduce", on_hardware.all_reduce, on_axes.all_reduce),
        ("optimal", on_hardware.best, on_axes.best),
    )
    for kind, priced, in_axis_order in kinds:
        measured = row.measured.get(f"{kind}_{algorithm}_s")
        if measured is not None:
            yield P2Comparison(
                row=row,
                algorithm=algorithm,
                kind=kind,
                measured_s=measured,
                predicted_s=Seconds(RUNS * priced.seconds),
                program=priced.program,
                link=max(((s.seconds, s.link) for s in priced.steps), default=(0.0, ""))[1],
                aligned=aligned,
                axis_order_s=Seconds(RUNS * in_axis_order.seconds),
            )


def _levels(ranker: Ranker, row: P2Row, reduction: Reduction) -> tuple[frozenset[object], ...]:
    levels = ranker.hierarchy(row.placement, reduction.axes).levels
    return tuple(frozenset(level.factors) for level in levels)
