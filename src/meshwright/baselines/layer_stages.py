"""Layer-wise model parallelism by min-max chain partition: one contiguous stage a device. Enters: a
graph, a cluster. Leaves: a `Plan`.

Units in the order of the graph are cut into contiguous stages, one on each device. With w_i the
work of unit i (floating-point operations of both passes), the largest stage is as small as can be:

    capacity = min C such that units filled one by one into stages of at most C need no more stages
               than there are devices                                          `_smallest_capacity`
and while devices are left over, the largest stage that can be cut is cut once more (`_halved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from meshwright.baselines.roles import require_few, seat, work
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units


def model_parallel(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """One stage on each device."""
    require_few(cluster)
    mesh_factors = factors(cluster)
    stages = contiguous([work(unit) for unit in units(graph)], cluster.devices)
    layouts = [Layout(seat(stage, mesh_factors)) for stage in stages]
    return Plan.of("model parallel", graph, cluster, layouts)


def contiguous(loads: Sequence[int], count: int) -> list[int]:
    """The stage of each load, of at most so many; no stage is without load unless all are.

    >>> contiguous([4, 1, 2, 0, 3], 2), contiguous([9, 1, 0, 2], 3), contiguous([0, 0], 2)
    ([0, 0, 1, 1, 1], [0, 1, 2, 2], [0, 0])
    """
    stages = _filled(loads, _smallest_capacity(loads, count))
    runs = [[loads[i] for i, _ in run] for _, run in groupby(enumerate(stages), lambda at: at[1])]
    while len(runs) < count:
        parts = [(sum(run), -at) for at, run in enumerate(runs) if sum(map(bool, run)) > 1]
        if not parts:
            break
        at = -max(parts)[1]
        runs[at : at + 1] = _halved(runs[at])
    return [stage for stage, run in enumerate(runs) for _ in run]


def _halved(run: list[int]) -> list[list[int]]:
    """A run cut in two, so that the larger part is as small as can be."""
    cuts = [at for at in range(1, len(run)) if any(run[:at]) and any(run[at:])]
    at = min(cuts, key=lambda at: max(sum(run[:at]), sum(run[at:])))
    return [run[:at], run[at:]]


def _filled(loads: Sequence[int], capacity: int) -> list[int]:
    """The stage of each load, if a stage is left only when the next load does not fit."""
    stages, stage, held = [], 0, 0
    for load in loads:
        if held and held + load > capacity:
            stage, held = stage + 1, 0
        held += load
        stages.append(stage)
    return stages


def _smallest_capacity(loads: Sequence[int], stages: int) -> int:
    """The least capacity with which so many stages suffice."""
    low, high = max(loads, default=0), sum(loads)
    while low < high:
        middle = (low + high) // 2
        if _filled(loads, middle)[-1] < stages:
            high = middle
        else:
            low = middle + 1
    return low
