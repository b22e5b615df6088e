"""Load lower bound of a proposal's makespan: the load of the bottleneck resource. Compiled. Enters:
a task graph with a change. Leaves: a lower bound of its makespan, far cheaper than simulating it.

No resource can do with less than the sum of what tasks hold it for: its load (`heaviest`). Loads
are kept up to date by what a change takes away and adds (`shift`). A proposal that would be refused
at such a cost is refused at once: searches take the same steps as without the bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled, inlined
from meshwright.simulate.delta.resource_lists import has
from meshwright.simulate.move import TASKS, MoveUndo
from meshwright.simulate.tasks import NOWHERE, Indices, Ints, TaskGraph


class ResourceMembers(NamedTuple):
    """The resources of every set, by kind: a task looks only at kinds that it holds."""

    start: Indices
    """[s, k + 1]"""
    resource: Indices


def members(tasks: TaskGraph) -> ResourceMembers:
    """The sets of a task graph."""
    sets, kinds = len(tasks.set_start) - 1, tasks.hold.shape[1]
    kind = tasks.resource_kind[tasks.set_resource]
    owner = np.repeat(np.arange(sets), np.diff(tasks.set_start))
    order = np.lexsort((tasks.set_resource, kind, owner))
    counted = np.bincount(owner * kinds + kind, minlength=sets * kinds).reshape(sets, kinds)
    start = np.concatenate((np.zeros((sets, 1), np.int64), counted.cumsum(axis=1)), axis=1)
    return ResourceMembers(
        (start + tasks.set_start[:-1, np.newaxis]).astype(np.int32),
        tasks.set_resource[order],
    )


@inlined
def add(
    of: ResourceMembers, bits: Ints, first: int, second: int, kind: int, held: int, load: Ints
) -> None:
    """Add to the loads of all resources of a kind in the union of two sets."""
    if first != NOWHERE:
        for at in range(of.start[first, kind], of.start[first, kind + 1]):
            load[of.resource[at]] += held
    if second != NOWHERE:
        for at in range(of.start[second, kind], of.start[second, kind + 1]):
            r = of.resource[at]
            if first == NOWHERE or not has(bits[first], r):
                load[r] += held


@compiled
def shift(tasks: TaskGraph, log: MoveUndo, of: ResourceMembers, bits: Ints, load: Ints) -> None:
    """Move the loads along with a change."""
    task, live, places, hold = log.task, log.live, log.places, log.hold
    live_now, places_now, hold_now = tasks.live, tasks.places, tasks.hold
    for i in range(log.number[TASKS]):
        t = task[i]
        first, second = places[i, 0], places[i, 1]
        first_now, second_now = places_now[t, 0], places_now[t, 1]
        unmoved = live_now[t] and live[i] and first == first_now and second == second_now
        for kind in range(hold.shape[1]):
            before = hold[i, kind] if live[i] else 0
            after = hold_now[t, kind] if live_now[t] else 0
            if unmoved:
                before, after = 0, after - before
            if before != 0:
                add(of, bits, first, second, kind, -before, load)
            if after != 0:
                add(of, bits, first_now, second_now, kind, after, load)


@compiled
def heaviest(load: Ints) -> int:
    """The largest load."""
    most = 0
    for r in range(len(load)):
        most = max(most, load[r])
    return most
