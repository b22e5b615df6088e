"""Commit of a delta trial: its tasks merged into the accepted timeline. Enters: a trial that was
simulated to its end.

Leaves: the accepted timeline, changed from the first position at which the two differ.
"""

from __future__ import annotations

from meshwright.base.compiled import compiled, copy_row, inlined
from meshwright.simulate.delta.accept import accept_whole, update_position_maxima
from meshwright.simulate.delta.state import (
    FIRST,
    GONE,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    WHOLE,
    AcceptedMove,
    DeltaTrial,
)
from meshwright.simulate.delta.walk import marked
from meshwright.simulate.tasks import TaskGraph


@compiled
def commit(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Accept a trial."""
    if new.at[WHOLE] > 0:
        accept_whole(graph, new.whole, new.at[WHOLE] - 1, new.work.free, state)
        return
    sort_done(new)
    count = merge(state, new)
    for at in range(new.at[IN_ACTIVE]):
        if new.state[new.active[at]] == GONE:
            state.position[new.active[at]] = -1
    for at in range(new.at[IN_DONE]):
        t = new.done[at]
        state.ready[t], state.lag[t] = new.ready[t], new.lag[t]
        state.span[t], state.tail[t] = new.span[t], new.tail[t]
        state.joint[t] = graph.joint[t]
        copy_row(new.uses, t, state.uses, t)
        copy_row(new.until, t, state.until, t)
    for position in range(new.at[FIRST], count):
        t = new.order[position]
        state.order[position] = t
        state.position[t] = position
    state.size[0] = count
    update_position_maxima(graph, state, new.at[FIRST])


@inlined
def before(a_ready: int, a: int, b_ready: int, b: int) -> bool:
    """Whether task a takes its resources before task b."""
    return a_ready < b_ready or (a_ready == b_ready and a < b)


@inlined
def sort_done(new: DeltaTrial) -> None:
    """Sort the marked tasks by their order; they nearly are."""
    for at in range(1, new.at[IN_DONE]):
        t = new.done[at]
        place = at
        while place > 0 and before(
            new.ready[t], t, new.ready[new.done[place - 1]], new.done[place - 1]
        ):
            new.done[place] = new.done[place - 1]
            place -= 1
        new.done[place] = t


@inlined
def merge(state: AcceptedMove, new: DeltaTrial) -> int:
    """Move the unmarked tasks by their frames, merge the others in; leaves the new length."""
    position = count = new.at[FIRST]
    done = frame = 0
    while position < state.size[0] or done < new.at[IN_DONE]:
        if position < state.size[0]:
            t = state.order[position]
            if marked(new, t):
                position += 1
                continue
            while frame + 1 < new.at[IN_FRAMES] and new.frame_from[frame + 1] <= position:
                frame += 1
            ready = state.ready[t] + new.frame_shift[frame]
            if done == new.at[IN_DONE] or before(
                ready, t, new.ready[new.done[done]], new.done[done]
            ):
                state.ready[t] = ready
                new.order[count] = t
                position += 1
                count += 1
                continue
        new.order[count] = new.done[done]
        done += 1
        count += 1
    return int(count)
