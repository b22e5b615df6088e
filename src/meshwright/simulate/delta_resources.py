"""Resources in a trial: which are not free when the frame says, and tasks that take them.

A resource is clean if in the trial it is free when it is in the accepted timeline before the
cursor, moved by the shift of the frame; or if both are not after now, since nothing that is still
to come can tell. Of the others, which are dirty, `free_new` is kept. When a resource is free in the
accepted timeline is looked up when it is needed: by going back from the cursor to the task that
took it last, but no farther than where all is free.
"""

from __future__ import annotations

import numpy as np

from meshwright.simulate.compiled import inlined
from meshwright.simulate.delta_state import CURSOR, NOW, SHIFT, STALE, UNUSED, Accepted, Trial
from meshwright.simulate.tasks import NOWHERE, Ints, TaskGraph


@inlined
def has(bits: Ints, r: int) -> bool:
    """Whether a resource is in a row of bits."""
    return bool((bits[r >> 6] >> np.int64(r & 63)) & 1)


@inlined
def put(bits: Ints, r: int) -> None:
    """Put a resource into a row of bits."""
    bits[r >> 6] |= np.int64(1) << np.int64(r & 63)


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
def want(state: Accepted, new: Trial, first: int, second: int) -> bool:
    """Want the clean resources of two sets; leaves whether there are any."""
    any_bits = 0
    for word in range(len(new.wanted)):
        bits = 0
        if first != NOWHERE:
            bits |= state.bits[first, word]
        if second != NOWHERE:
            bits |= state.bits[second, word]
        new.wanted[word] = bits & ~new.dirty[word]
        any_bits |= new.wanted[word]
    return bool(any_bits != 0)


@inlined
def look_up(graph: TaskGraph, state: Accepted, new: Trial, now: int) -> None:
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
        if new.wanted[word] != 0:
            for r in range(word * 64, min(word * 64 + 64, len(new.free_old))):
                if has(new.wanted, r):
                    new.free_old[r] = 0


@inlined
def word_of_all(new: Trial, word: int) -> int:
    """The bits of all resources in a word."""
    left = len(new.free_old) - 64 * word
    return -1 if left >= 64 else (1 << left) - 1


@inlined
def found(graph: TaskGraph, state: Accepted, new: Trial, t: int) -> None:
    """Read the wanted resources off the task that took them last."""
    for side in range(2):
        place = state.places[t, side]
        if place != NOWHERE:
            first = graph.set_start[place]
            for at in range(first, graph.set_start[place + 1]):
                r = graph.set_resource[at]
                if has(new.wanted, r):
                    left = state.until[t, graph.resource_kind[r] if state.joint[t] else at - first]
                    if left != UNUSED:
                        new.free_old[r] = state.ready[t] + left
                        drop(new.wanted, r)


@inlined
def soil(new: Trial, graph: TaskGraph, first: int, second: int) -> None:
    """Make the resources of two sets dirty, those that were clean having been looked up."""
    for side in range(2):
        place = second if side else first
        if place != NOWHERE:
            for at in range(graph.set_start[place], graph.set_start[place + 1]):
                r = graph.set_resource[at]
                if not has(new.dirty, r):
                    put(new.dirty, r)
                    new.free_new[r] = new.free_old[r] + new.at[SHIFT]


@inlined
def weigh(graph: TaskGraph, state: Accepted, new: Trial) -> None:
    """Make the dirty resources clean that are; remember until when the others can matter."""
    now, shift, stale = new.at[NOW], new.at[SHIFT], 0
    for word in range(len(new.dirty)):
        new.wanted[word] = new.dirty[word]
    look_up(graph, state, new, now - shift)
    for word in range(len(new.dirty)):
        if new.dirty[word] != 0:
            for r in range(word * 64, min(word * 64 + 64, len(new.free_old))):
                if has(new.dirty, r):
                    old, moved = (
                        max(new.free_old[r], now - shift),
                        max(new.free_new[r], now) - shift,
                    )
                    if old == moved:
                        drop(new.dirty, r)
                    else:
                        stale = max(stale, old, moved)
    new.at[STALE] = stale


@inlined
def touches(state: Accepted, bits: Ints, t: int) -> bool:
    """Whether an accepted task may use one of some resources."""
    common = 0
    for side in range(2):
        place = state.places[t, side]
        if place != NOWHERE:
            for word in range(len(bits)):
                common |= state.bits[place, word] & bits[word]
    return bool(common != 0)


@inlined
def take_old(graph: TaskGraph, state: Accepted, new: Trial, t: int) -> None:
    """The task at the cursor took its resources in the accepted timeline; they are dirty here."""
    ready, joint, shift, stale = state.ready[t], state.joint[t], new.at[SHIFT], new.at[STALE]
    for side in range(2):
        place = state.places[t, side]
        if place != NOWHERE:
            first = graph.set_start[place]
            for at in range(first, graph.set_start[place + 1]):
                r = graph.set_resource[at]
                left = state.until[t, graph.resource_kind[r] if joint else at - first]
                if left != UNUSED:
                    stale = max(stale, ready + left)
                    if new.free_new[r] - shift == ready + left:
                        drop(new.dirty, r)
    new.at[STALE] = stale


@inlined
def take_new(graph: TaskGraph, new: Trial, t: int) -> None:
    """Let a marked task take its resources, which are dirty, in the trial; and end."""
    if graph.joint[t]:
        take_jointly(graph, new, t)
    else:
        take_singly(graph, new, t)
    new.span[t] = new.lag[t] + graph.duration[t]
    new.at[STALE] = max(new.at[STALE], new.ready[t] + new.tail[t] - new.at[SHIFT])
    new.tail[t] = max(new.tail[t], new.span[t])


@inlined
def take_singly(graph: TaskGraph, new: Trial, t: int) -> None:
    """Each resource by itself."""
    ready, latest, tail = new.ready[t], new.ready[t], 0
    place = graph.places[t, 0]
    if place != NOWHERE:
        first = graph.set_start[place]
        for at in range(first, graph.set_start[place + 1]):
            r = graph.set_resource[at]
            hold = graph.hold[t, graph.resource_kind[r]]
            left = UNUSED
            if hold > 0:
                begin = max(ready, new.free_new[r])
                new.free_new[r] = begin + hold
                latest = max(latest, begin)
                left = begin + hold - ready
            new.until[t, at - first] = left
            tail = max(tail, left)
    new.lag[t] = latest - ready
    new.tail[t] = tail


@inlined
def take_jointly(graph: TaskGraph, new: Trial, t: int) -> None:
    """All resources at once."""
    ready, start, tail = new.ready[t], new.ready[t], 0
    for side in range(2):
        place = graph.places[t, side]
        if place != NOWHERE:
            for at in range(graph.set_start[place], graph.set_start[place + 1]):
                r = graph.set_resource[at]
                if graph.hold[t, graph.resource_kind[r]] > 0:
                    start = max(start, new.free_new[r])
    for kind in range(graph.hold.shape[1]):
        hold = graph.hold[t, kind]
        new.until[t, kind] = start - ready + hold if hold > 0 else UNUSED
        tail = max(tail, new.until[t, kind])
    for side in range(2):
        place = graph.places[t, side]
        if place != NOWHERE:
            for at in range(graph.set_start[place], graph.set_start[place + 1]):
                r = graph.set_resource[at]
                left = new.until[t, graph.resource_kind[r]]
                if left != UNUSED:
                    new.free_new[r] = ready + left
    new.lag[t] = start - ready
    new.tail[t] = tail
