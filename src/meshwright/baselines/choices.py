"""OptCNN's search space: the candidate layouts of each op group. Enters: a unit, a cluster. Leaves:
layouts on all devices that split samples, attributes and parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster
from meshwright.sharding.layout import Layout, layouts
from meshwright.sharding.states import State
from meshwright.sharding.unit import OpGroup

FEW = 400
"""Layouts of a unit, at most, unless those with a single role are more."""


def candidate_layouts(parts: Sequence[OpGroup], cluster: Cluster) -> list[tuple[Layout, ...]]:
    """The choices of each unit; units that can be cut alike share them."""
    known: dict[object, tuple[Layout, ...]] = {}
    per_unit = []
    for unit in parts:
        key = (unit.splits, tuple(unit.extents.items()), _order(unit))
        if key not in known:
            known[key] = choices(unit, cluster)
        per_unit.append(known[key])
    return per_unit


def choices(unit: OpGroup, cluster: Cluster) -> tuple[Layout, ...]:
    """The layouts on all devices that sum nothing; of many those with the fewest different roles.

    A loss sums over samples and may be cut along them all the same. Splits are named in the order
    of the dims that they cut, so that of layouts that exchanging factors makes equal neighbouring
    units keep the same.
    """
    names = [n for n in _order(unit) if _adds_nothing(unit, n)]
    extents = {unit.splits[n].name: unit.extents[unit.splits[n].name] for n in names}
    candidates = list(layouts(extents, cluster, idle=False))
    counted = Counter(len(set(layout.roles)) for layout in candidates)
    most = 1
    while most < max(counted) and sum(n for k, n in counted.items() if k <= most + 1) <= FEW:
        most += 1
    return tuple(layout for layout in candidates if len(set(layout.roles)) <= most)


def _order(unit: OpGroup) -> tuple[int, ...]:
    """The splits in the order of the dims of the first output."""
    states: tuple[State, ...] = unit.outputs[0].forward if unit.outputs else ()
    return tuple(sorted(range(len(unit.splits)), key=lambda n: (*states[n : n + 1], n)))


def _adds_nothing(unit: OpGroup, number: int) -> bool:
    split = unit.splits[number]
    return split.role != "reduction" or split.name == "sample"
