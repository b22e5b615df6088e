"""A whole timeline becomes the accepted one. Enters: a task graph. Leaves: its accepted timeline
from the full engine, and room for trials. Nothing here knows of changes.
"""

from __future__ import annotations

import numpy as np

from meshwright.simulate import full
from meshwright.simulate.compiled import compiled, inlined
from meshwright.simulate.delta_state import (
    BLOCK,
    FRAMES,
    PATIENCE,
    SCALARS,
    UNUSED,
    Accepted,
    Trial,
)
from meshwright.simulate.tasks import NOWHERE, Flags, Indices, Ints, TaskGraph, Timeline

IMPATIENCE = 6
"""A trial gives up once it has simulated one task in so many one by one: a whole one is faster."""


def accepted(graph: TaskGraph) -> Accepted:
    """The accepted timeline of a graph, from the full engine."""
    n = len(graph.live)
    state = Accepted(
        ready=_ints(n),
        lag=_ints(n),
        span=_ints(n),
        tail=_ints(n),
        until=np.zeros((n, _width(graph)), np.int64),
        joint=_flags(n),
        places=np.zeros((n, 2), np.int32),
        position=_indices(n),
        order=_indices(n),
        high=_ints(n),
        peak=_ints(n // BLOCK + 1),
        size=_ints(2),
        bits=_bits(graph),
    )
    work, timeline = full.scratch(graph), full.timeline_of(graph)
    count, _ = full.run(graph, work, timeline)
    assert count == graph.live.sum(), "the live edges have a cycle"
    accept_whole(graph, timeline, count, work.free, state)
    return state


def trial(graph: TaskGraph) -> Trial:
    """Room for trials of changes of a graph."""
    n, resources, words = len(graph.live), len(graph.resource_kind), _bits(graph).shape[1]
    scalars = _ints(SCALARS)
    scalars[PATIENCE] = n // IMPATIENCE
    return Trial(
        at=scalars,
        mark=_indices(n),
        state=_indices(n),
        pinned=_flags(n),
        checked=_indices(n),
        ready=_ints(n),
        lag=_ints(n),
        span=_ints(n),
        tail=_ints(n),
        until=np.zeros((n, _width(graph)), np.int64),
        active=_indices(n),
        todo=_indices(n + len(graph.succ)),
        done=_indices(n),
        queue=_ints(n),
        stops=_ints(n),
        stop=_indices(n),
        watched=_indices(n),
        frame_from=_ints(FRAMES),
        frame_shift=_ints(FRAMES),
        dirty=_ints(words),
        wanted=_ints(words),
        free_old=_ints(resources),
        free_new=_ints(resources),
        order=_indices(n),
        work=full.scratch(graph),
        whole=full.timeline_of(graph),
    )


def _ints(size: int) -> Ints:
    return np.zeros(size, np.int64)


def _indices(size: int) -> Indices:
    return np.zeros(size, np.int32)


def _flags(size: int) -> Flags:
    return np.zeros(size, np.bool_)


def _width(graph: TaskGraph) -> int:
    """The columns of `until`: for every kind, for every resource of the widest set."""
    return int(max(np.diff(graph.set_start).max(initial=0), graph.hold.shape[1]))


def _bits(graph: TaskGraph) -> Ints:
    """The sets of resources as rows of bits."""
    sets = len(graph.set_start) - 1
    bits = np.zeros((sets, (len(graph.resource_kind) + 63) // 64), np.int64)
    for s in range(sets):
        for r in graph.set_resource[graph.set_start[s] : graph.set_start[s + 1]]:
            bits[s, r >> 6] |= np.int64(1) << np.int64(r & 63)
    return bits


@inlined
def copy_row(target: Ints, source: Ints, row: int) -> None:
    """Copy one row; an assignment of rows would allocate."""
    for column in range(target.shape[1]):
        target[row, column] = source[row, column]


@compiled
def accept_whole(
    graph: TaskGraph, timeline: Timeline, count: int, free: Ints, state: Accepted
) -> None:
    """Make a whole timeline of the full engine the accepted one; `free` is of use meanwhile."""
    state.position[:] = -1
    free[:] = 0
    for position in range(count):
        t = timeline.order[position]
        ready = timeline.ready[t]
        state.position[t] = position
        state.order[position] = t
        state.ready[t] = ready
        state.span[t] = timeline.end[t] - ready
        state.lag[t] = timeline.start[t] - ready
        state.joint[t] = graph.joint[t]
        state.places[t, 0], state.places[t, 1] = graph.places[t, 0], graph.places[t, 1]
        held = holds(graph, t, timeline.start[t], ready, free, state.until)
        state.tail[t] = max(state.span[t], held)
    state.size[0] = count
    summarise(state, 0)


@inlined
def holds(graph: TaskGraph, t: int, start: int, ready: int, free: Ints, until: Ints) -> int:
    """Fill a task's row of `until` and make its resources taken; leaves the latest of the row.

    `start` is the latest on any resource, `free` what is free from when before the task.
    """
    latest = 0
    if graph.joint[t]:
        for kind in range(graph.hold.shape[1]):
            hold = graph.hold[t, kind]
            until[t, kind] = start - ready + hold if hold > 0 else UNUSED
            latest = max(latest, until[t, kind])
        for side in range(2):
            place = graph.places[t, side]
            if place != NOWHERE:
                for at in range(graph.set_start[place], graph.set_start[place + 1]):
                    r = graph.set_resource[at]
                    left = until[t, graph.resource_kind[r]]
                    if left != UNUSED:
                        free[r] = ready + left
        return latest
    place = graph.places[t, 0]
    if place != NOWHERE:
        first = graph.set_start[place]
        for at in range(first, graph.set_start[place + 1]):
            r = graph.set_resource[at]
            hold = graph.hold[t, graph.resource_kind[r]]
            until[t, at - first] = UNUSED
            if hold > 0:
                free[r] = max(ready, free[r]) + hold
                until[t, at - first] = free[r] - ready
                latest = max(latest, free[r] - ready)
    return latest


@compiled
def summarise(state: Accepted, first: int) -> None:
    """Bring what is kept by position up to date from a position on, and the makespan."""
    count = state.size[0]
    high = state.high[first - 1] if first > 0 else 0
    for position in range(first, count):
        t = state.order[position]
        high = max(high, state.ready[t] + state.tail[t])
        state.high[position] = high
    block = first // BLOCK
    state.peak[block:] = 0
    for position in range(block * BLOCK, count):
        t = state.order[position]
        at = position // BLOCK
        state.peak[at] = max(state.peak[at], state.ready[t] + state.span[t])
    state.size[1] = 0
    for at in range((count + BLOCK - 1) // BLOCK):
        state.size[1] = max(state.size[1], state.peak[at])


@inlined
def latest_end(state: Accepted, first: int, last: int) -> int:
    """The latest end at the positions from first up to last."""
    latest = 0
    position = first
    while position < last:
        if position % BLOCK == 0 and position + BLOCK <= last:
            latest = max(latest, state.peak[position // BLOCK])
            position += BLOCK
        else:
            t = state.order[position]
            latest = max(latest, state.ready[t] + state.span[t])
            position += 1
    return latest
