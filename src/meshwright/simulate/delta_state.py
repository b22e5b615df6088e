"""What the delta engine keeps. Enters: a task graph. Leaves: room for its accepted timeline and for
a trial of another. Nothing here decides anything; `delta` says what the parts are for.

Times of a task are kept relative to its ready, so that moving a stretch of the timeline changes one
number a task. A set of resources is also a row of bits, 64 to a word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.simulate import full
from meshwright.simulate.compiled import compiled, inlined
from meshwright.simulate.tasks import NOWHERE, Flags, Indices, Ints, TaskGraph, Timeline

UNUSED = -1
"""In `until`: the task does not use that resource."""

BLOCK = 32
"""Positions to a block of `peak`."""

FRAMES = 64
"""The most frames of one trial."""

WAITING, QUEUED, DONE, GONE = 0, 1, 2, 3
"""A task with a predecessor to come, in the queue, that took its resources, that is not live."""

(
    EPOCH,
    CURSOR,
    SHIFT,
    NOW,
    IN_QUEUE,
    IN_STOPS,
    IN_ACTIVE,
    IN_DONE,
    IN_TODO,
    IN_FRAMES,
    FARTHEST,
    STALE,
    CANDIDATE,
    VOTES,
    PATIENCE,
    FIRST,
    MAKESPAN,
    WHOLE,
    BITS,
) = range(19)
"""The places of `Trial.at`."""


class Accepted(NamedTuple):
    """The timeline that the search stands on."""

    ready: Ints
    """[n]"""
    lag: Ints
    """[n] latest start - ready."""
    span: Ints
    """[n] end - ready."""
    tail: Ints
    """[n] when the task has ended and freed all it held - ready."""
    until: Ints
    """[n, w] when a resource is free again - ready, or UNUSED; of a joint task by kind, of another
    by place in its set."""
    joint: Flags
    """[n]"""
    places: Indices
    """[n, 2]"""
    position: Indices
    """[n] in the order, or -1."""
    order: Indices
    """[n] of which the first `size[0]` count."""
    high: Ints
    """[n] by position: the latest ready + tail so far."""
    peak: Ints
    """By block of positions: the latest end."""
    size: Ints
    """[2] how many tasks took part; the makespan."""
    bits: Ints
    """[s, words] the resources of each set."""


class Trial(NamedTuple):
    """What a proposal differs in; a mark counts only if it is the trial's epoch."""

    at: Ints
    """The scalars."""
    mark: Indices
    """[n] whether the task is simulated one by one."""
    state: Indices
    """[n]"""
    pinned: Flags
    """[n] whether the task or what comes before it is not what it was."""
    checked: Indices
    """[n] the predecessors before this place have ended, and are in `ready`."""
    ready: Ints
    lag: Ints
    span: Ints
    tail: Ints
    until: Ints
    active: Indices
    """[n] marked tasks that may still matter."""
    todo: Indices
    """[n + e] waiting tasks whose predecessors are to be looked at."""
    done: Indices
    """[n] marked tasks that took their resources, in their order but for those a frame left."""
    queue: Ints
    """[n] marked tasks that are ready."""
    stops: Ints
    """[n] a queue of positions at which the cursor has to look."""
    stop: Indices
    """[n] by position: whether it is in `stops`."""
    watched: Indices
    """[n] by position: whether a marked task waits for the task there."""
    frame_from: Ints
    """By frame: its first position."""
    frame_shift: Ints
    """By frame: how much later its tasks are."""
    dirty: Ints
    """[words] resources that are not free when the frame says."""
    wanted: Ints
    """[words] resources that are looked up."""
    free_old: Ints
    """By resource, of dirty ones: free in the accepted timeline before the cursor."""
    free_new: Ints
    """By resource, of dirty ones: free in the trial."""
    order: Indices
    """[n] of use while committing and while moving to another frame."""
    work: full.Scratch
    whole: Timeline
    """Where the full engine simulates once the trial has lost patience."""


def accepted(graph: TaskGraph) -> Accepted:
    """The accepted timeline of a graph, from the full engine."""
    n, sets = len(graph.live), len(graph.set_start) - 1
    width = int(max(np.diff(graph.set_start).max(initial=0), graph.hold.shape[1], 1))
    words = (len(graph.resource_kind) + 63) // 64
    bits = np.zeros((sets, words), np.int64)
    for s in range(sets):
        for r in graph.set_resource[graph.set_start[s] : graph.set_start[s + 1]]:
            bits[s, r >> 6] |= np.int64(1) << np.int64(r & 63)
    state = Accepted(
        *(np.zeros(n, np.int64) for _ in range(4)),
        np.zeros((n, width), np.int64),
        np.zeros(n, np.bool_),
        np.zeros((n, 2), np.int32),
        np.zeros(n, np.int32),
        np.zeros(n, np.int32),
        np.zeros(n, np.int64),
        np.zeros(n // BLOCK + 1, np.int64),
        np.zeros(2, np.int64),
        bits,
    )
    work, timeline = full.scratch(graph), full.timeline_of(graph)
    count, _ = full.run(graph, work, timeline)
    assert count == graph.live.sum(), "the live edges have a cycle"
    accept_whole(graph, timeline, count, work.free, state)
    return state


def trial(graph: TaskGraph, state: Accepted) -> Trial:
    """Room for trials of changes of a graph."""
    n, resources, words = len(graph.live), len(graph.resource_kind), state.bits.shape[1]

    def ints(size: int) -> Ints:
        return np.zeros(size, np.int64)

    def indices() -> Indices:
        return np.zeros(n, np.int32)

    scalars = ints(BITS + 1)
    scalars[PATIENCE] = n // 6
    return Trial(
        scalars,
        indices(),
        indices(),
        np.zeros(n, np.bool_),
        indices(),
        *(ints(n) for _ in range(4)),
        np.zeros_like(state.until),
        indices(),
        np.zeros(n + len(graph.succ), np.int32),
        indices(),
        ints(n),
        ints(n),
        indices(),
        indices(),
        ints(FRAMES),
        ints(FRAMES),
        ints(words),
        ints(words),
        ints(resources),
        ints(resources),
        indices(),
        full.scratch(graph),
        full.timeline_of(graph),
    )


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
