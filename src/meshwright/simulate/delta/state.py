"""State of the delta engine: the accepted timeline, and a trial of another. Records alone; `delta`
says what their parts are for.

Times of a task are kept relative to its ready, so that moving a stretch of the timeline changes one
number a task. A set of resources is also a row of bits, 64 to a word.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.simulate import full
from meshwright.simulate.tasks import Flags, Indices, Ints, Timeline

BLOCK = 32
"""Positions to a block of `peak`."""

LAST_EPOCH = 2**31 - 1
"""The largest mark; after it all marks are taken off and epochs begin anew."""

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
    PENALTY,
    BLIND,
    BOUND,
) = range(22)
"""The places of `DeltaTrial.at`. WHOLE is 0, or 1 + how many tasks took part in a whole
simulation."""

SCALARS = BOUND + 1
"""The length of `DeltaTrial.at`."""


class AcceptedMove(NamedTuple):
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
    """[n, w] when a resource that the task uses is free again - ready; of a joint task by kind, of
    another by resource."""
    uses: Ints
    """[n, words] the resources of the task's sets that it holds."""
    joint: Flags
    """[n]"""
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
    kinds: Ints
    """[k, words] the resources of each kind."""
    load: Ints
    """By resource: the sum of what live tasks hold it for, in the graph as it is; a caller that
    gives limits keeps it."""
    weighed: Indices
    """By kind: the resource on which trials are measured."""
    taken: Ints
    """[n + 1, kinds] what of the weighed resources was taken before a position."""


class DeltaTrial(NamedTuple):
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
    uses: Ints
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
    ahead: Ints
    """By kind: how much more of the weighed resource was taken than before the cursor."""
    order: Indices
    """[n] of use while committing and while moving to another frame."""
    work: full.EngineScratch
    whole: Timeline
    """Where the full engine simulates once the trial has lost patience."""
