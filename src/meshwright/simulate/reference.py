"""Reference simulation engine: O(n²) list scheduling, the oracle of the other engines. Enters: a
task graph. Leaves: its timeline.

Written from the definition at the head of `tasks`, one task after another, in whole Python numbers;
it looks through all tasks for each that it takes, and knows nothing of heaps or changes.
"""

from __future__ import annotations

import numpy as np

from meshwright.simulate.tasks import NOWHERE, TaskGraph, Timeline


def simulate(graph: TaskGraph) -> Timeline:
    """When everything happens, in O(n²)."""
    n = len(graph.live)
    before = _live_predecessors(graph)
    ready, start, end = [0] * n, [0] * n, [0] * n
    free = [0] * len(graph.resource_kind)
    waiting = {t for t in range(n) if graph.live[t]}
    order: list[int] = []
    while waiting:
        can_go = [t for t in waiting if not waiting.intersection(before[t])]
        assert can_go, "the live edges have a cycle"
        for t in can_go:
            ready[t] = max((end[s] for s in before[t]), default=0)
        task = min(can_go, key=lambda t: (ready[t], t))
        starts = _starts(graph, task, ready[task], free)
        for r, begin in starts.items():
            free[r] = begin + int(graph.hold[task, graph.resource_kind[r]])
        start[task] = max(starts.values(), default=ready[task])
        end[task] = start[task] + int(graph.duration[task])
        waiting.remove(task)
        order.append(task)
    return Timeline(
        np.array(ready, np.int64),
        np.array(start, np.int64),
        np.array(end, np.int64),
        np.array(order, np.int32),
    )


def _live_predecessors(graph: TaskGraph) -> list[set[int]]:
    before: list[set[int]] = []
    for first, last in zip(graph.pred_start[:-1], graph.pred_start[1:], strict=True):
        edges = graph.pred_edge[first:last]
        before.append({int(s) for s in graph.pred[first:last][graph.edge_live[edges]]})
    return before


def _starts(graph: TaskGraph, task: int, ready: int, free: list[int]) -> dict[int, int]:
    """When a task starts on each of its resources."""
    starts: dict[int, int] = {}
    for place in graph.places[task]:
        if place != NOWHERE:
            for r in graph.set_resource[graph.set_start[place] : graph.set_start[place + 1]]:
                if graph.hold[task, graph.resource_kind[r]] > 0:
                    starts[int(r)] = max(ready, free[r])
    if graph.joint[task]:
        return dict.fromkeys(starts, max(starts.values(), default=ready))
    return starts
