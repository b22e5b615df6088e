"""What a change cannot do better than. Compiled. Enters: a task graph with a change. Leaves: lower
bounds of its makespan, far cheaper than simulating it.

    heaviest   no resource can do with less than the sum of what tasks hold it for; the sums are
               kept up to date by what a change takes away and adds
    longest    no chain of tasks can do with less than the sum of its durations; tasks are numbered
               so that edges lead to higher numbers, and one pass over the edges finds it
A proposal that would be refused at such a cost is refused at once: searches take the same steps as
without the bounds.
"""

from __future__ import annotations

import numpy as np

from meshwright.foundation.compiled import compiled
from meshwright.search.change import TASKS, Undo
from meshwright.simulate.tasks import NOWHERE, Indices, Ints, TaskGraph


def loads(tasks: TaskGraph) -> Ints:
    """For every resource the sum of what live tasks hold it for."""
    found = np.zeros(len(tasks.resource_kind), np.int64)
    for task in np.flatnonzero(tasks.live):
        add(tasks, tasks.places, tasks.hold, int(task), 1, found)
    return found


@compiled
def add(tasks: TaskGraph, places: Indices, hold: Ints, row: int, sign: int, load: Ints) -> None:
    """Add to the loads, or take away, what a task with these places and holds holds."""
    starts, resources, kinds = tasks.set_start, tasks.set_resource, tasks.resource_kind
    first, second = places[row, 0], places[row, 1]
    if first != NOWHERE:
        for at in range(starts[first], starts[first + 1]):
            r = resources[at]
            load[r] += sign * hold[row, kinds[r]]
    if second != NOWHERE:
        for at in range(starts[second], starts[second + 1]):
            r = resources[at]
            if first == NOWHERE or not _holds(starts, resources, first, r):
                load[r] += sign * hold[row, kinds[r]]


@compiled
def _holds(starts: Indices, resources: Indices, place: int, resource: int) -> bool:
    """Whether a set has a resource; sets are sorted."""
    low, high = starts[place], starts[place + 1]
    while low < high:
        middle = (low + high) >> 1
        if resources[middle] < resource:
            low = middle + 1
        else:
            high = middle
    return bool(low < starts[place + 1] and resources[low] == resource)


@compiled
def shift(tasks: TaskGraph, log: Undo, load: Ints, sign: int) -> None:
    """Move the loads along with a change (sign 1), or back (sign -1)."""
    live, places, hold, task = log.live, log.places, log.hold, log.task
    for i in range(log.number[TASKS]):
        if live[i]:
            add(tasks, places, hold, i, -sign, load)
        if tasks.live[task[i]]:
            add(tasks, tasks.places, tasks.hold, task[i], sign, load)


@compiled
def heaviest(load: Ints) -> int:
    """The largest load."""
    most = 0
    for r in range(len(load)):
        most = max(most, load[r])
    return most


@compiled
def longest(tasks: TaskGraph, head: Ints) -> int:
    """The longest chain of live tasks; `head` is room for one number a task."""
    live, duration, succ_start = tasks.live, tasks.duration, tasks.succ_start
    succ, edge_live = tasks.succ, tasks.edge_live
    n, most = len(live), 0
    for t in range(n):
        head[t] = 0
    for t in range(n):
        if live[t]:
            end = head[t] + duration[t]
            most = max(most, end)
            for edge in range(succ_start[t], succ_start[t + 1]):
                if edge_live[edge] and head[succ[edge]] < end:
                    head[succ[edge]] = end
    return most
