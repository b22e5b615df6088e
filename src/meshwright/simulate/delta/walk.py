"""One step of the delta engine: a marked task is simulated, or the cursor moves on.

Enters: the graph as changed, the accepted timeline, a trial. Leaves: the trial one step on. `delta`
says what marks and cursor mean and why this is exact.
"""

from __future__ import annotations

from meshwright.base.compiled import inlined
from meshwright.simulate.delta.accept import latest_end
from meshwright.simulate.delta.limit import move_cursor, reached
from meshwright.simulate.delta.resource_lists import (
    empty,
    look_up_free_times,
    mark_resources_dirty,
    note_uses,
    take_accepted_resources,
    take_trial_resources,
    touches,
    want,
    weigh,
)
from meshwright.simulate.delta.state import (
    BITS,
    CANDIDATE,
    CURSOR,
    DONE,
    EPOCH,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    IN_QUEUE,
    IN_STOPS,
    IN_TODO,
    MAKESPAN,
    NOW,
    QUEUED,
    SHIFT,
    STALE,
    VOTES,
    WAITING,
    AcceptedMove,
    DeltaTrial,
)
from meshwright.simulate.queue import drop_first, push
from meshwright.simulate.tasks import TaskGraph

NEVER = (1 << 63) - 1
"""The key of a queue or an order with nothing left."""


@inlined
def marked(new: DeltaTrial, t: int) -> bool:
    """Whether a task is simulated one by one."""
    return bool(new.mark[t] == new.at[EPOCH])


@inlined
def stop_at(new: DeltaTrial, position: int) -> None:
    """Make the cursor look at a position."""
    if new.stop[position] != new.at[EPOCH]:
        new.stop[position] = new.at[EPOCH]
        new.at[IN_STOPS] = push(new.stops, new.at[IN_STOPS], position)


@inlined
def mark(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int, stage: int) -> None:
    """From now on simulate a task one by one."""
    new.mark[t] = new.at[EPOCH]
    new.state[t] = stage
    new.pinned[t] = False
    new.checked[t] = graph.pred_start[t]
    new.ready[t] = 0
    new.active[new.at[IN_ACTIVE]] = t
    new.at[IN_ACTIVE] += 1
    new.todo[new.at[IN_TODO]] = t
    new.at[IN_TODO] += 1
    if state.position[t] >= new.at[CURSOR]:
        stop_at(new, state.position[t])


@inlined
def shift_at(new: DeltaTrial, position: int) -> int:
    """How much later the unmarked task at a position before the cursor is."""
    frame = new.at[IN_FRAMES] - 1
    while new.frame_from[frame] > position:
        frame -= 1
    return int(new.frame_shift[frame])


@inlined
def examine(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> None:
    """Go on through the predecessors of a waiting task up to one that is to come, or queue it."""
    while new.checked[t] < graph.pred_start[t + 1]:
        if graph.edge_live[graph.pred_edge[new.checked[t]]]:
            before = graph.pred[new.checked[t]]
            if marked(new, before):
                if new.state[before] != DONE:
                    return
                end = new.ready[before] + new.span[before]
            else:
                position = state.position[before]
                if position >= new.at[CURSOR]:
                    new.watched[position] = new.at[EPOCH]
                    stop_at(new, position)
                    return
                end = state.ready[before] + state.span[before] + shift_at(new, position)
            new.ready[t] = max(new.ready[t], end)
        new.checked[t] += 1
    new.state[t] = QUEUED
    key = (new.ready[t] << new.at[BITS]) | t
    new.at[IN_QUEUE] = push(new.queue, new.at[IN_QUEUE], key)


@inlined
def examine_all(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Examine the waiting tasks of the list."""
    for at in range(new.at[IN_TODO]):
        if new.state[new.todo[at]] == WAITING:
            examine(graph, state, new, new.todo[at])
    new.at[IN_TODO] = 0


@inlined
def tell(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int, moved: bool) -> None:
    """List the tasks that wait for one; mark all that follow it if it is not where it was."""
    for edge in range(graph.succ_start[t], graph.succ_start[t + 1]):
        if graph.edge_live[edge]:
            after = graph.succ[edge]
            if not marked(new, after):
                if moved:
                    mark(graph, state, new, after, WAITING)
            elif new.state[after] == WAITING and graph.pred[new.checked[after]] == t:
                new.todo[new.at[IN_TODO]] = after
                new.at[IN_TODO] += 1


@inlined
def vote(new: DeltaTrial, shift: int, ballots: int) -> None:
    """Tasks that moved by a shift vote for it to be the frame's.

    As Boyer and Moore count a majority, but a vote for the candidate weighs twice one for a third:
    of several streams that moved apart one is to win, even if it is less than half.
    """
    if shift == new.at[SHIFT]:
        new.at[VOTES] = max(0, new.at[VOTES] - 2 * ballots)
    elif new.at[VOTES] <= 0:
        new.at[CANDIDATE], new.at[VOTES] = shift, 2 * ballots
    else:
        new.at[VOTES] += 2 * ballots if shift == new.at[CANDIDATE] else -ballots


@inlined
def take(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> bool:
    """A task of the queue takes its resources; leaves whether it ends where the frame says not."""
    take_trial_resources(graph, new, t)
    reached(graph, state, new, t)
    new.state[t] = DONE
    new.done[new.at[IN_DONE]] = t
    new.at[IN_DONE] += 1
    end = new.ready[t] + new.span[t]
    new.at[MAKESPAN] = max(new.at[MAKESPAN], end)
    moved = True
    if state.position[t] >= 0:
        shift = end - state.ready[t] - state.span[t]
        moved = shift != new.at[SHIFT]
        if not new.pinned[t]:
            vote(new, shift, 1)
    return moved


@inlined
def key_at(state: AcceptedMove, new: DeltaTrial, position: int, shift: int) -> int:
    """The key of the task at a position if it is so much later."""
    t = state.order[position]
    return int(((state.ready[t] + shift) << new.at[BITS]) | t)


@inlined
def bisect_position(
    state: AcceptedMove, new: DeltaTrial, low: int, high: int, shift: int, key: int
) -> int:
    """The first position from low up to high whose key is not before a key, or high."""
    while low < high:
        middle = (low + high) >> 1
        if key_at(state, new, middle, shift) < key:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def jump(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """The cursor passes the task at it, and if all is clean, all up to the next that is not."""
    cursor, last = new.at[CURSOR], new.at[CURSOR] + 1
    if empty(new.dirty):
        while new.at[IN_STOPS] > 0 and new.stops[0] < cursor:
            new.stop[new.stops[0]] = 0
            new.at[IN_STOPS] = drop_first(new.stops, new.at[IN_STOPS])
        last = new.stops[0] if new.at[IN_STOPS] > 0 else state.size[0]
        if new.at[IN_QUEUE] > 0:
            last = bisect_position(state, new, cursor + 1, last, new.at[SHIFT], new.queue[0])
    end = latest_end(state, cursor, last) + new.at[SHIFT]
    new.at[MAKESPAN] = max(new.at[MAKESPAN], end)
    vote(new, new.at[SHIFT], last - cursor)
    new.at[CURSOR] = last


@inlined
def next_of_queue(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> int:
    """The key of the first task of the queue if it comes before the cursor's, NEVER otherwise."""
    if new.at[IN_QUEUE] == 0:
        return NEVER
    cursor = new.at[CURSOR]
    if cursor < state.size[0] and key_at(state, new, cursor, new.at[SHIFT]) < new.queue[0]:
        return NEVER
    return int(new.queue[0])


@inlined
def uses_dirty_resource(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> bool:
    """Whether the task at the cursor may use a dirty resource."""
    if state.ready[t] >= new.at[STALE]:
        new.dirty[:] = 0
    if not touches(state, new.dirty, t):
        return False
    weigh(graph, state, new)
    return touches(state, new.dirty, t)


@inlined
def step(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> bool:
    """Take one step; False if there is none left."""
    examine_all(graph, state, new)
    cursor, shift = new.at[CURSOR], new.at[SHIFT]
    rows = state.uses
    key = next_of_queue(graph, state, new)
    if key == NEVER and cursor == state.size[0]:
        return False
    if key != NEVER:
        t = key & ((1 << new.at[BITS]) - 1)
        new.at[IN_QUEUE] = drop_first(new.queue, new.at[IN_QUEUE])
        new.at[NOW] = new.ready[t]
        note_uses(graph, state, new.uses, t)
        rows = new.uses
    else:
        t = state.order[cursor]
        new.at[NOW] = state.ready[t] + shift
        if not marked(new, t):
            if uses_dirty_resource(graph, state, new, t):
                mark(graph, state, new, t, WAITING)
                return True
            if new.watched[cursor] != new.at[EPOCH]:
                jump(graph, state, new)
                return True
    moved = False
    if marked(new, t) and want(new, rows, t):
        look_up_free_times(graph, state, new, new.at[NOW] - shift)
        mark_resources_dirty(new, rows, t)
    if key != NEVER:
        moved = take(graph, state, new, t)
    elif marked(new, t):
        moved = new.state[t] == WAITING or new.state[t] == QUEUED
        if new.state[t] == DONE:
            take_accepted_resources(graph, state, new, t)
        else:
            new.at[STALE] = max(new.at[STALE], state.ready[t] + state.tail[t])
        move_cursor(state, new, cursor + 1)
    else:
        new.at[CURSOR] += 1
        new.at[MAKESPAN] = max(new.at[MAKESPAN], new.at[NOW] + state.span[t])
    tell(graph, state, new, t, moved)
    return True
