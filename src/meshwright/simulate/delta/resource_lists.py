"""Dirty-resource tracking of the delta engine, in bit sets.

A resource is clean if in the trial it is free when it is in the accepted timeline before the
cursor, moved by the shift of the frame; or if both are not after now, since nothing that is still
to come can tell. Of the others, which are dirty, `free_new` is kept. When a resource is free in the
accepted timeline is looked up when it is needed: by going back from the cursor to the task that
took it last, but no farther than where all is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numba.cpython.unsafe import numbers

from meshwright.base.compiled import inlined
from meshwright.simulate.delta.state import CURSOR, NOW, SHIFT, STALE, AcceptedMove, DeltaTrial
from meshwright.simulate.tasks import NOWHERE, Ints, TaskGraph

lowest = cast("Callable[[int], int]", numbers.trailing_zeros)
"""The place of the lowest bit of a word that has one: loops go from bit to bit by it."""


@inlined
def has(bits: Ints, r: int) -> bool:
    """Whether a resource is in a row of bits."""
    return bool((bits[r >> 6] >> np.int64(r & 63)) & 1)


@inlined
def drop(bits: Ints, r: int) -> None:
    """Take a resource out of a row of bits."""
    bits[r >> 6] &= ~(np.int64(1) << np.int64(r & 63))


@inlined
def empty(bits: Ints) -> bool:
    """Whether a row of bits has no resource."""
    common = 0
    for word in range(len(bits)):
        common |= bits[word]
    return bool(common == 0)


@inlined
def note_uses(graph: TaskGraph, state: AcceptedMove, rows: Ints, t: int) -> None:
    """Write the resources that a task of the graph uses into its row."""
    first, second = graph.places[t, 0], graph.places[t, 1]
    for word in range(rows.shape[1]):
        held = placed = 0
        for kind in range(graph.hold.shape[1]):
            if graph.hold[t, kind] > 0:
                held |= state.kinds[kind, word]
        if first != NOWHERE:
            placed |= state.bits[first, word]
        if second != NOWHERE:
            placed |= state.bits[second, word]
        rows[t, word] = held & placed


@inlined
def want(new: DeltaTrial, rows: Ints, t: int) -> bool:
    """Want the clean resources of a task; leaves whether there are any."""
    any_bits = 0
    for word in range(len(new.wanted)):
        new.wanted[word] = rows[t, word] & ~new.dirty[word]
        any_bits |= new.wanted[word]
    return bool(any_bits != 0)


@inlined
def look_up_free_times(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, now: int) -> None:
    """Put into `free_old` when the wanted resources are free in the accepted order at the cursor.

    `now` is in the accepted time; 0 stands for any time that is not after it.
    """
    position = new.at[CURSOR] - 1
    while position >= 0 and state.high[position] > now:
        t = state.order[position]
        position -= 1
        if touches(state, new.wanted, t):
            found(graph, state, new, t)
            if empty(new.wanted):
                return
    for word in range(len(new.wanted)):
        left = new.wanted[word]
        while left != 0:
            new.free_old[64 * word + lowest(left)] = 0
            left &= left - 1


@inlined
def word_of_all(new: DeltaTrial, word: int) -> int:
    """The bits of all resources in a word."""
    left = len(new.free_old) - 64 * word
    return -1 if left >= 64 else (1 << left) - 1


@inlined
def found(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> None:
    """Read the wanted resources off the task that took them last."""
    for word in range(len(new.wanted)):
        left = new.wanted[word] & state.uses[t, word]
        new.wanted[word] &= ~left
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            new.free_old[r] = state.ready[t] + state.until[t, column(graph, state.joint[t], r)]


@inlined
def column(graph: TaskGraph, joint: bool, r: int) -> int:
    """Where in a task's row of `until` a resource is."""
    return int(graph.resource_kind[r]) if joint else r


@inlined
def mark_resources_dirty(new: DeltaTrial, rows: Ints, t: int) -> None:
    """Make the resources of a task dirty, those that were clean having been looked up."""
    for word in range(len(new.dirty)):
        left = rows[t, word] & ~new.dirty[word]
        new.dirty[word] |= left
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            new.free_new[r] = new.free_old[r] + new.at[SHIFT]


@inlined
def weigh(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Make the dirty resources clean that are; remember until when the others can matter."""
    now, shift, stale = new.at[NOW], new.at[SHIFT], 0
    for word in range(len(new.dirty)):
        new.wanted[word] = new.dirty[word]
    look_up_free_times(graph, state, new, now - shift)
    for word in range(len(new.dirty)):
        left = new.dirty[word]
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            old, moved = max(new.free_old[r], now - shift), max(new.free_new[r], now) - shift
            if old == moved:
                drop(new.dirty, r)
            else:
                stale = max(stale, old, moved)
    new.at[STALE] = stale


@inlined
def touches(state: AcceptedMove, bits: Ints, t: int) -> bool:
    """Whether an accepted task uses one of some resources."""
    common = 0
    for word in range(len(bits)):
        common |= state.uses[t, word] & bits[word]
    return bool(common != 0)


@inlined
def take_accepted_resources(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> None:
    """The task at the cursor took its resources in the accepted timeline; they are dirty here."""
    ready, joint, shift, stale = state.ready[t], state.joint[t], new.at[SHIFT], new.at[STALE]
    for word in range(len(new.dirty)):
        left = state.uses[t, word]
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            until = ready + state.until[t, column(graph, joint, r)]
            stale = max(stale, until)
            if new.free_new[r] - shift == until:
                drop(new.dirty, r)
    new.at[STALE] = stale


@inlined
def take_trial_resources(graph: TaskGraph, new: DeltaTrial, t: int) -> None:
    """Let a marked task take its resources, which are dirty, in the trial; and end."""
    if graph.joint[t]:
        take_jointly(graph, new, t)
    else:
        take_singly(graph, new, t)
    new.span[t] = new.lag[t] + graph.duration[t]
    new.at[STALE] = max(new.at[STALE], new.ready[t] + new.tail[t] - new.at[SHIFT])
    new.tail[t] = max(new.tail[t], new.span[t])


@inlined
def take_singly(graph: TaskGraph, new: DeltaTrial, t: int) -> None:
    """Each resource by itself."""
    ready, latest, tail = new.ready[t], new.ready[t], 0
    for word in range(len(new.dirty)):
        left = new.uses[t, word]
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            begin = max(ready, new.free_new[r])
            latest = max(latest, begin)
            until = begin + graph.hold[t, graph.resource_kind[r]]
            new.free_new[r] = until
            new.until[t, r] = until - ready
            tail = max(tail, until - ready)
    new.lag[t] = latest - ready
    new.tail[t] = tail


@inlined
def take_jointly(graph: TaskGraph, new: DeltaTrial, t: int) -> None:
    """All resources at once."""
    ready, start, tail = new.ready[t], new.ready[t], 0
    for word in range(len(new.dirty)):
        left = new.uses[t, word]
        while left != 0:
            start = max(start, new.free_new[64 * word + lowest(left)])
            left &= left - 1
    for kind in range(graph.hold.shape[1]):
        new.until[t, kind] = start - ready + graph.hold[t, kind]
    for word in range(len(new.dirty)):
        left = new.uses[t, word]
        while left != 0:
            r = 64 * word + lowest(left)
            left &= left - 1
            until = new.until[t, graph.resource_kind[r]]
            new.free_new[r] = ready + until
            tail = max(tail, until)
    new.lag[t] = start - ready
    new.tail[t] = tail
