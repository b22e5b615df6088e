"""The task graph that the engines simulate. Enters: arrays. Leaves: a `TaskGraph` that the three
engines understand alike.

A task has a number, a duration and resources (a device's compute stream, an instance of a link).
Let end(t) be when task t ends. Then, in whole nanoseconds,
    ready(t) = max of end(s) over the live edges s -> t, 0 without any
    tasks take their resources in the order of (ready, number)
    start(t, r) = max(ready(t), free(r))                   for each resource r that t uses
                  and, if t is joint, the same for all: the latest of them
    free(r) becomes start(t, r) + hold(t, kind of r)
    end(t) = duration(t) + the latest start(t, r), or + ready(t) if it uses none.
A compute task is not joint: each device starts its shard when it is free. A collective is joint:
nobody starts before everybody does; it holds each link for as long as its bytes need there, which
may be shorter than the whole takes. Durations are at least 1, so that every task is ready later
than those before it and the order of (ready, number) is unique: the timeline is a function of the
graph, whatever the engine. Tasks and edges that are not live take no part; a change of plan turns
them on and off and never moves them. Nothing here knows what a task stands for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]

NOWHERE = -1
"""In `places`: no set of resources."""


class TaskGraph(NamedTuple):
    """n tasks, e edges, s sets of resources, k kinds of resources; see the head of this module.

    Lists of lists are flat: the items of list i are those from start[i] to start[i + 1].
    """

    live: Flags
    """[n] whether a task takes part."""
    duration: Ints
    """[n] in nanoseconds, at least 1."""
    joint: Flags
    """[n] whether a task starts on all its resources at once."""
    places: Indices
    """[n, 2] the sets of resources that a task uses, or NOWHERE; only a joint task has two."""
    hold: Ints
    """[n, k] how long a task holds each resource of a kind; it uses those above 0."""
    set_start: Indices
    """[s + 1]"""
    set_resource: Indices
    """The resources of the sets, each once in a set."""
    resource_kind: Indices
    """[number of resources]"""
    succ_start: Indices
    """[n + 1]"""
    succ: Indices
    """[e] the tasks that follow; the number of an edge is its place here."""
    edge_live: Flags
    """[e] whether an edge takes part; both its ends do."""
    pred_start: Indices
    """[n + 1]"""
    pred: Indices
    """[e] the tasks before."""
    pred_edge: Indices
    """[e] the number of the edge, beside `pred`."""


class Timeline(NamedTuple):
    """When everything happens, in nanoseconds; of tasks that are not live, zeros."""

    ready: Ints
    """[n]"""
    start: Ints
    """[n] the latest start on any of a task's resources."""
    end: Ints
    """[n]"""
    order: Indices
    """The live tasks as they took their resources."""

    @property
    def makespan(self) -> int:
        """When the last task ends."""
        return int(self.end.max(initial=0))


def loads(graph: TaskGraph) -> Ints:
    """How long each resource is held in all."""
    totals = np.zeros(len(graph.resource_kind), np.int64)
    _add_loads(graph, np.full(len(totals), NOWHERE, np.int64), totals)
    return totals


@compiled
def _add_loads(graph: TaskGraph, seen: Ints, totals: Ints) -> None:
    """Add the holds of all live tasks; `seen` is the last task that held each resource."""
    for task in range(len(graph.live)):
        if not graph.live[task]:
            continue
        for place in graph.places[task]:
            if place == NOWHERE:
                continue
            for at in range(graph.set_start[place], graph.set_start[place + 1]):
                resource = graph.set_resource[at]
                if seen[resource] != task:
                    seen[resource] = task
                    totals[resource] += graph.hold[task, graph.resource_kind[resource]]
