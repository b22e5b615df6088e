"""Accuracy on P²'s table: prediction errors, program and placement speed-ups, bandwidth fits.

Enters: comparisons. Leaves: figures with the number of cases behind each. A *case* is one row
with one algorithm for which AllReduce and the optimum were both measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median

import msgspec

from meshwright.base.quantities import BytesPerSecond
from meshwright.cluster.cluster import Cluster
from meshwright.validate.p2 import P2Comparison
from meshwright.validate.p2_rows import CLUSTERS


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions are from measurements, as a share of the measured time."""

    times: int
    median: float
    worst: float


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """What programs gain over AllReduce, and placements over placements."""

    cases: int
    improved: float
    """Share of cases with any gain, as the paper counts."""
    improved_by_5_percent: float
    mean_speedup_of_improved: float
    """As the paper averages."""
    mean_speedup: float
    """Over all cases."""
    largest_speedup: float
    largest_placement_ratio: float
    """Slowest AllReduce over fastest AllReduce among the placements of the same axes."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A bandwidth of the catalogue beside what the Ring AllReduce rows it paces imply."""

    cluster: str
    link: str
    used: BytesPerSecond
    rows: int
    implied: BytesPerSecond
    """The median over those rows."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a validation."""

    errors: dict[str, Errors]
    measured: Gains
    predicted: Gains
    fits: tuple[Fit, ...]


def summarize(comparisons: Sequence[P2Comparison]) -> Summary:
    """The figures of a validation."""
    groups: dict[str, list[P2Comparison]] = {
        "ring allreduce across nodes": [],
        "tree allreduce across nodes": [],
        "optimum across nodes, levels lined up": [],
        "optimum across nodes, axis order as run": [],
        "inside a node": [],
    }
    for it in comparisons:
        if not it.row.across_nodes:
            groups["inside a node"].append(it)
        elif it.kind == "allreduce":
            groups[f"{it.algorithm} allreduce across nodes"].append(it)
        elif it.aligned:
            groups["optimum across nodes, levels lined up"].append(it)
        else:
            groups["optimum across nodes, axis order as run"].append(it)
    return Summary(
        errors={name: _errors(group) for name, group in groups.items() if group},
        measured=_gains(comparisons, measured=True),
        predicted=_gains(comparisons, measured=False),
        fits=tuple(_fits(comparisons)),
    )


def _errors(comparisons: Iterable[P2Comparison]) -> Errors:
    # In axis order the prediction to hold against the paper's run is the one in axis order.
    return errors((it.axis_order_s, it.measured_s) for it in comparisons)


def errors(times: Iterable[tuple[float, float]]) -> Errors:
    """How far predicted times are from measured ones, given as pairs."""
    sizes = [abs(predicted / measured - 1) for predicted, measured in times]
    return Errors(times=len(sizes), median=median(sizes), worst=max(sizes))


def _gains(comparisons: Iterable[P2Comparison], *, measured: bool) -> Gains:
    seconds: dict[object, dict[str, float]] = defaultdict(dict)
    ratios: dict[object, list[float]] = defaultdict(list)
    for it in comparisons:
        row, value = it.row, it.measured_s if measured else it.predicted_s
        same_axes = (row.gpu, row.nodes, row.gpus_per_node, row.axes, row.reduce_axes, it.algorithm)
        seconds[(*same_axes, row.matrix)][it.kind] = value
        if it.kind == "allreduce":
            ratios[same_axes].append(value)
    speedups = [case["allreduce"] / case["optimal"] for case in seconds.values() if len(case) == 2]
    return gains(speedups, [max(times) / min(times) for times in ratios.values()])


def gains(exact: Iterable[float], ratios: Iterable[float]) -> Gains:
    """The figures of each case's speed-up, and of the ratios between placements of equal axes."""
    # Two predictions of the same program must not count as a gain because of rounding.
    speedups = [round(speedup, 9) for speedup in exact]
    better = [speedup for speedup in speedups if speedup > 1]
    return Gains(
        cases=len(speedups),
        improved=len(better) / max(1, len(speedups)),
        improved_by_5_percent=sum(s > 1.05 for s in speedups) / max(1, len(speedups)),
        mean_speedup_of_improved=fmean(better) if better else 1.0,
        mean_speedup=fmean(speedups) if speedups else 1.0,
        largest_speedup=max(speedups, default=1.0),
        largest_placement_ratio=max(ratios, default=1.0),
    )


def _fits(comparisons: Iterable[P2Comparison]) -> Iterable[Fit]:
    implied: dict[tuple[str, str], list[float]] = defaultdict(list)
    for it in comparisons:
        if it.kind == "allreduce" and it.algorithm == "ring":
            implied[CLUSTERS[it.row.gpu], it.link].append(it.predicted_s / it.measured_s)
    for (name, link), ratios in sorted(implied.items()):
        used = next(
            known.out
            for level in Cluster.named(name).levels
            for known in level.links
            if known.name == link
        )
        yield Fit(
            cluster=name,
            link=link,
            used=used,
            rows=len(ratios),
            implied=BytesPerSecond(used * median(ratios)),
        )
