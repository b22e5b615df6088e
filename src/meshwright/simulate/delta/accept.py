"""Acceptance of a full timeline as the delta engine's baseline. Enters: a task graph. Leaves: its
accepted timeline from the full engine, and room for trials. Nothing here knows of changes.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.compiled import compiled, inlined
from meshwright.simulate import full
from meshwright.simulate.delta.limit import sum_loads, update_prefix_loads
from meshwright.simulate.delta.resource_lists import column, lowest, note_uses
from meshwright.simulate.delta.state import (
    BLOCK,
    FRAMES,
    PATIENCE,
    SCALARS,
    AcceptedMove,
    DeltaTrial,
)
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph, Timeline

IMPATIENCE = 2
"""A trial gives up once it has simulated one task in so many one by one, dead ones counted: of a
search, whose limits stop most trials before, fewer gave a slower one."""


def accepted(graph: TaskGraph) -> AcceptedMove:
    """The accepted timeline of a graph, from the full engine."""
    n, resources, kinds = len(graph.live), len(graph.resource_kind), graph.hold.shape[1]
    state = AcceptedMove(
        ready=_ints(n),
        lag=_ints(n),
        span=_ints(n),
        tail=_ints(n),
        until=np.zeros((n, _width(graph)), np.int64),
        uses=np.zeros((n, _words(graph)), np.int64),
        joint=_flags(n),
        position=_indices(n),
        order=_indices(n),
        high=_ints(n),
        peak=_ints(n // BLOCK + 1),
        size=_ints(2),
        bits=_bits(graph),
        kinds=_kinds(graph),
        load=_ints(resources),
        weighed=_indices(kinds),
        taken=np.zeros((n + 1, kinds), np.int64),
    )
    work, timeline = full.scratch(graph), full.timeline_of(graph)
    count, _ = full.run(graph, work, timeline)
    assert count == graph.live.sum(), "the live edges have a cycle"
    sum_loads(graph, state, state.uses)
    accept_whole(graph, timeline, count, work.free, state)
    return state


def trial(graph: TaskGraph) -> DeltaTrial:
    """Room for trials of changes of a graph."""
    n, resources, words = len(graph.live), len(graph.resource_kind), _words(graph)
    scalars = _ints(SCALARS)
    scalars[PATIENCE] = n // IMPATIENCE
    return DeltaTrial(
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
        uses=np.zeros((n, words), np.int64),
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
        ahead=_ints(graph.hold.shape[1]),
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
    """The columns of `until`: for every kind or for every resource."""
    return int(max(len(graph.resource_kind), graph.hold.shape[1]))


def _words(graph: TaskGraph) -> int:
    """The words of a row of bits."""
    return (len(graph.resource_kind) + 63) // 64


def _bits(graph: TaskGraph) -> Ints:
    """The sets of resources as rows of bits."""
    sets = len(graph.set_start) - 1
    bits = np.zeros((sets, _words(graph)), np.int64)
    for s in range(sets):
        for r in graph.set_resource[graph.set_start[s] : graph.set_start[s + 1]]:
            bits[s, r >> 6] |= np.int64(1) << np.int64(r & 63)
    return bits


def _kinds(graph: TaskGraph) -> Ints:
    """The resources of each kind as rows of bits."""
    bits = np.zeros((graph.hold.shape[1], _words(graph)), np.int64)
    for r, kind in enumerate(graph.resource_kind):
        bits[kind, r >> 6] |= np.int64(1) << np.int64(r & 63)
    return bits


@compiled
def accept_whole(
    graph: TaskGraph, timeline: Timeline, count: int, free: Ints, state: AcceptedMove
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
        note_uses(graph, state, state.uses, t)
        held = holds(graph, state, t, timeline.start[t], ready, free)
        state.tail[t] = max(state.span[t], held)
    state.size[0] = count
    update_position_maxima(graph, state, 0)


@inlined
def holds(graph: TaskGraph, state: AcceptedMove, t: int, start: int, ready: int, free: Ints) -> int:
    """Fill a task's row of `until` and make its resources taken; leaves the latest of the row.

    `start` is the latest on any resource, `free` what is free from when before the task.
    """
    latest, joint = 0, graph.joint[t]
    for word in range(state.uses.shape[1]):
        left = state.uses[t, word]
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            begin = start if joint else max(ready, free[r])
            free[r] = begin + graph.hold[t, graph.resource_kind[r]]
            state.until[t, column(graph, joint, r)] = free[r] - ready
            latest = max(latest, free[r] - ready)
    return latest


@compiled
def update_position_maxima(graph: TaskGraph, state: AcceptedMove, first: int) -> None:
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
    update_prefix_loads(graph, state)


@inlined
def latest_end(state: AcceptedMove, first: int, last: int) -> int:
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
