"""One step of a trial: a marked task takes its resources, or the cursor passes a position.

Enters: the graph as changed, the accepted timeline, a trial. Leaves: the trial one step on. `delta`
says what marks and cursor mean and why this is exact.
"""

from __future__ import annotations

from meshwright.simulate.compiled import bits_of_numbers, compiled, drop_first, push
from meshwright.simulate.delta_resources import (
    empty,
    take_new,
    take_old,
    touches_dirt,
    weigh_all,
)
from meshwright.simulate.delta_state import (
    CANDIDATE,
    CURSOR,
    DONE,
    EPOCH,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    IN_QUEUE,
    IN_STOPS,
    MAKESPAN,
    NOW,
    QUEUED,
    SHIFT,
    STALE,
    VOTES,
    WAITING,
    Accepted,
    Trial,
    latest_end,
)
from meshwright.simulate.tasks import TaskGraph

NEVER = (1 << 63) - 1
"""The key of a queue or an order with nothing left."""


@compiled
def marked(new: Trial, t: int) -> bool:
    """Whether a task is simulated one by one."""
    return bool(new.mark[t] == new.at[EPOCH])


@compiled
def stop_at(new: Trial, position: int) -> None:
    """Make the cursor look at a position."""
    if new.stop[position] != new.at[EPOCH]:
        new.stop[position] = new.at[EPOCH]
        new.at[IN_STOPS] = push(new.stops, new.at[IN_STOPS], position)


@compiled
def mark(graph: TaskGraph, state: Accepted, new: Trial, t: int, stage: int) -> None:
    """From now on simulate a task one by one."""
    new.mark[t] = new.at[EPOCH]
    new.state[t] = stage
    new.pinned[t] = False
    new.checked[t] = graph.pred_start[t]
    new.ready[t] = 0
    new.active[new.at[IN_ACTIVE]] = t
    new.at[IN_ACTIVE] += 1
    if state.position[t] >= new.at[CURSOR]:
        stop_at(new, state.position[t])


@compiled
def shift_at(new: Trial, position: int) -> int:
    """How much later the unmarked task at a position before the cursor is."""
    frame = new.at[IN_FRAMES] - 1
    while new.frame_from[frame] > position:
        frame -= 1
    return int(new.frame_shift[frame])


@compiled
def examine(graph: TaskGraph, state: Accepted, new: Trial, t: int) -> None:
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
    key = (new.ready[t] << bits_of_numbers(len(graph.live))) | t
    new.at[IN_QUEUE] = push(new.queue, new.at[IN_QUEUE], key)


@compiled
def tell(graph: TaskGraph, state: Accepted, new: Trial, t: int, moved: bool) -> None:
    """Examine the tasks that wait for one; mark all that follow it if it is not where it was."""
    for edge in range(graph.succ_start[t], graph.succ_start[t + 1]):
        if graph.edge_live[edge]:
            after = graph.succ[edge]
            if not marked(new, after):
                if moved:
                    mark(graph, state, new, after, WAITING)
                    examine(graph, state, new, after)
            elif new.state[after] == WAITING and graph.pred[new.checked[after]] == t:
                examine(graph, state, new, after)


@compiled
def vote(new: Trial, shift: int, ballots: int) -> None:
    """Tasks that moved by a shift vote for it to be the frame's: Boyer and Moore's majority."""
    if shift == new.at[SHIFT]:
        new.at[VOTES] = max(0, new.at[VOTES] - ballots)
    elif new.at[VOTES] == 0:
        new.at[CANDIDATE], new.at[VOTES] = shift, ballots
    else:
        new.at[VOTES] += ballots if shift == new.at[CANDIDATE] else -ballots


@compiled
def take_first(graph: TaskGraph, state: Accepted, new: Trial) -> None:
    """The first task of the queue takes its resources."""
    t = new.queue[0] & ((1 << bits_of_numbers(len(graph.live))) - 1)
    new.at[IN_QUEUE] = drop_first(new.queue, new.at[IN_QUEUE])
    new.at[NOW] = new.ready[t]
    take_new(graph, state, new, t)
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
    tell(graph, state, new, t, moved)


@compiled
def key_at(graph: TaskGraph, state: Accepted, position: int, shift: int) -> int:
    """The key of the task at a position if it is so much later."""
    t = state.order[position]
    return int(((state.ready[t] + shift) << bits_of_numbers(len(graph.live))) | t)


@compiled
def first_not_before(
    graph: TaskGraph, state: Accepted, low: int, high: int, shift: int, key: int
) -> int:
    """The first position from low up to high whose key is not before a key, or high."""
    while low < high:
        middle = (low + high) >> 1
        if key_at(graph, state, middle, shift) < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def pass_marked(graph: TaskGraph, state: Accepted, new: Trial, t: int) -> None:
    """The cursor passes a marked task: if it did not take its resources, all after it is late."""
    new.at[NOW] = state.ready[t] + new.at[SHIFT]
    take_old(graph, state, new, t)
    new.at[CURSOR] += 1
    if new.state[t] == WAITING or new.state[t] == QUEUED:
        tell(graph, state, new, t, True)


@compiled
def jump(graph: TaskGraph, state: Accepted, new: Trial, key: int) -> None:
    """The cursor passes all that is clean, up to the next stop or the first task of the queue."""
    here, last = new.at[CURSOR], state.size[0]
    while new.at[IN_STOPS] > 0 and new.stops[0] < here:
        new.stop[new.stops[0]] = 0
        new.at[IN_STOPS] = drop_first(new.stops, new.at[IN_STOPS])
    if new.at[IN_STOPS] > 0:
        last = new.stops[0]
    if key != NEVER:
        last = first_not_before(graph, state, here + 1, last, new.at[SHIFT], key)
    end = latest_end(state, here, last) + new.at[SHIFT]
    new.at[MAKESPAN] = max(new.at[MAKESPAN], end)
    vote(new, new.at[SHIFT], last - here)
    new.at[CURSOR] = last


@compiled
def pass_one(graph: TaskGraph, state: Accepted, new: Trial, t: int) -> None:
    """The cursor passes a task that is not marked, or marks it if it may use what is dirty."""
    new.at[NOW] = state.ready[t] + new.at[SHIFT]
    if touches_dirt(state, new, t):
        weigh_all(new)
        if touches_dirt(state, new, t):
            mark(graph, state, new, t, WAITING)
            examine(graph, state, new, t)
            return
    here = new.at[CURSOR]
    new.at[CURSOR] += 1
    new.at[MAKESPAN] = max(new.at[MAKESPAN], new.at[NOW] + state.span[t])
    vote(new, new.at[SHIFT], 1)
    if new.watched[here] == new.at[EPOCH]:
        tell(graph, state, new, t, False)


@compiled
def step(graph: TaskGraph, state: Accepted, new: Trial) -> bool:
    """Take one step; False if there is none left."""
    first = new.queue[0] if new.at[IN_QUEUE] > 0 else NEVER
    here = new.at[CURSOR]
    if here == state.size[0]:
        if first == NEVER:
            return False
        take_first(graph, state, new)
        return True
    t = state.order[here]
    if first <= key_at(graph, state, here, new.at[SHIFT]):
        take_first(graph, state, new)
    elif marked(new, t):
        pass_marked(graph, state, new, t)
    else:
        if state.ready[t] >= new.at[STALE]:
            new.dirty[:] = 0
        if new.stop[here] == new.at[EPOCH] or not empty(new.dirty):
            pass_one(graph, state, new, t)
        else:
            jump(graph, state, new, first)
    return True
