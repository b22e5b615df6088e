"""The full simulation engine: list scheduling by events. Enters: a task graph. Leaves: its
timeline.

A queue holds the tasks whose predecessors have all ended, by (ready, number); each takes its
resources, ends, and tells its successors: O(e + n log n + uses). Nothing here knows of changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.simulate.queue import bits_of_numbers, drop_first, push
from meshwright.simulate.tasks import NOWHERE, Indices, Ints, TaskGraph, Timeline


class EngineScratch(NamedTuple):
    """Where a simulation works; a caller that simulates often makes it once."""

    queue: Ints
    """[n]"""
    missing: Indices
    """[n] predecessors that have not ended."""
    free: Ints
    """[number of resources] from when on."""


def scratch(graph: TaskGraph) -> EngineScratch:
    """Room for simulating graphs of these sizes."""
    n = len(graph.live)
    free = np.zeros(len(graph.resource_kind), np.int64)
    return EngineScratch(np.zeros(n, np.int64), np.zeros(n, np.int32), free)


def timeline_of(graph: TaskGraph) -> Timeline:
    """An empty timeline with room for every task."""
    n = len(graph.live)
    times = (np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))
    return Timeline(*times, np.zeros(n, np.int32))


def simulate(graph: TaskGraph) -> Timeline:
    """When everything happens."""
    timeline = timeline_of(graph)
    count, _ = run(graph, scratch(graph), timeline)
    assert count == graph.live.sum(), "the live edges have a cycle"
    return timeline._replace(order=timeline.order[:count])


@compiled
def run(graph: TaskGraph, work: EngineScratch, timeline: Timeline) -> tuple[int, int]:
    """Simulate into a timeline with room for every task; leaves how many took part, the makespan.

    For compiled callers: allocates nothing. Fewer than the live tasks took part if there is a
    cycle. Times must stay below 2^63 divided by the number of tasks, rounded up to a power of 2.
    """
    ready, start, end, order = timeline
    queue, missing, free = work
    n = len(graph.live)
    bits = bits_of_numbers(n)
    free[:] = 0
    missing[:] = 0
    for edge in range(len(graph.succ)):
        missing[graph.succ[edge]] += graph.edge_live[edge]
    size = 0
    for t in range(n):
        ready[t], start[t], end[t] = 0, 0, 0
        if graph.live[t] and missing[t] == 0:
            size = push(queue, size, t)
    count, makespan = 0, 0
    while size > 0:
        t = queue[0] & ((1 << bits) - 1)
        size = drop_first(queue, size)
        order[count] = t
        count += 1
        start[t] = take(graph, t, ready[t], free)
        end[t] = done = start[t] + graph.duration[t]
        makespan = max(makespan, done)
        for edge in range(graph.succ_start[t], graph.succ_start[t + 1]):
            if graph.edge_live[edge]:
                after = graph.succ[edge]
                ready[after] = max(ready[after], done)
                missing[after] -= 1
                if missing[after] == 0:
                    size = push(queue, size, (ready[after] << bits) | after)
    return count, makespan


@compiled
def take(graph: TaskGraph, t: int, ready: int, free: Ints) -> int:
    """Let a task take its resources; leaves its latest start on any of them."""
    if graph.joint[t]:
        latest = ready
        for side in range(2):
            place = graph.places[t, side]
            if place != NOWHERE:
                for at in range(graph.set_start[place], graph.set_start[place + 1]):
                    r = graph.set_resource[at]
                    if graph.hold[t, graph.resource_kind[r]] > 0:
                        latest = max(latest, free[r])
        for side in range(2):
            place = graph.places[t, side]
            if place != NOWHERE:
                for at in range(graph.set_start[place], graph.set_start[place + 1]):
                    r = graph.set_resource[at]
                    hold = graph.hold[t, graph.resource_kind[r]]
                    if hold > 0:
                        free[r] = latest + hold
        return latest
    place = graph.places[t, 0]
    latest = ready
    if place != NOWHERE:
        for at in range(graph.set_start[place], graph.set_start[place + 1]):
            r = graph.set_resource[at]
            hold = graph.hold[t, graph.resource_kind[r]]
            if hold > 0:
                begin = max(ready, free[r])
                free[r] = begin + hold
                latest = max(latest, begin)
    return latest
