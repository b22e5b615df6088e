"""Time-shift frames of the delta engine: rebasing a trial on another shift.

Enters: a trial between two steps. Leaves: the same trial in other words: the cursor where the new
shift puts it, marks on all that is not where the new frame says, no mark on what now is.
"""

from __future__ import annotations

from meshwright.base.compiled import compiled, copy_row, inlined
from meshwright.simulate.delta.limit import move_cursor
from meshwright.simulate.delta.resource_lists import has, look_up_free_times, weigh, word_of_all
from meshwright.simulate.delta.state import (
    BITS,
    CURSOR,
    DONE,
    FARTHEST,
    FIRST,
    GONE,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    IN_QUEUE,
    IN_STOPS,
    IN_TODO,
    NOW,
    QUEUED,
    SHIFT,
    WAITING,
    AcceptedMove,
    DeltaTrial,
)
from meshwright.simulate.delta.walk import (
    bisect_position,
    mark,
    marked,
    shift_at,
    stop_at,
)
from meshwright.simulate.queue import push
from meshwright.simulate.tasks import TaskGraph


@compiled
def move_frame(
    graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, shift: int, key: int
) -> None:
    """Compare by another shift from the next step on, whose key is given."""
    new.at[NOW] = key >> new.at[BITS]
    cursor = bisect_position(state, new, 0, state.size[0], shift, key)
    resolve(graph, state, new)
    freeze(graph, state, new, cursor)
    for position in range(new.at[CURSOR], cursor):
        if not marked(new, state.order[position]):
            mark(graph, state, new, state.order[position], WAITING)
    while new.at[IN_STOPS] > 0:
        new.at[IN_STOPS] -= 1
        new.stop[new.stops[new.at[IN_STOPS]]] = 0
    new.at[IN_TODO] = 0
    late = in_flight(state, new, shift)
    while new.at[IN_FRAMES] > 0 and new.frame_from[new.at[IN_FRAMES] - 1] >= cursor:
        new.at[IN_FRAMES] -= 1
    new.frame_from[new.at[IN_FRAMES]] = cursor
    new.frame_shift[new.at[IN_FRAMES]] = shift
    new.at[IN_FRAMES] += 1
    move_cursor(state, new, cursor)
    new.at[SHIFT] = shift
    new.at[FARTHEST] = max(new.at[FARTHEST], shift)
    new.at[FIRST] = min(new.at[FIRST], cursor)
    for word in range(len(new.dirty)):
        new.dirty[word] = word_of_all(new, word)
    weigh(graph, state, new)
    unmark(graph, state, new)
    compact(graph, state, new)
    for at in range(late):
        mark_after(graph, state, new, new.order[at])


@inlined
def resolve(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Put into `free_new` when every resource is free in the trial."""
    for word in range(len(new.wanted)):
        new.wanted[word] = word_of_all(new, word) & ~new.dirty[word]
    look_up_free_times(graph, state, new, new.at[NOW] - new.at[SHIFT])
    for r in range(len(graph.resource_kind)):
        if not has(new.dirty, r):
            new.free_new[r] = new.free_old[r] + new.at[SHIFT]


@inlined
def freeze(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, cursor: int) -> None:
    """Mark what the cursor has passed and will meet again."""
    for position in range(cursor, new.at[CURSOR]):
        t = state.order[position]
        if not marked(new, t):
            mark(graph, state, new, t, DONE)
            new.ready[t] = state.ready[t] + shift_at(new, position)
            new.lag[t], new.span[t], new.tail[t] = state.lag[t], state.span[t], state.tail[t]
            copy_row(state.until, t, new.until, t)
            copy_row(state.uses, t, new.uses, t)
            new.done[new.at[IN_DONE]] = t
            new.at[IN_DONE] += 1


@inlined
def differs(new: DeltaTrial, end: int, old_end: int, shift: int) -> bool:
    """Whether a task that took its resources ends where a frame does not say, and it matters."""
    now = new.at[NOW]
    return bool(max(end, now) - shift != max(old_end, now - shift))


@inlined
def in_flight(state: AcceptedMove, new: DeltaTrial, shift: int) -> int:
    """Put into `order` the unmarked tasks that end where a frame to come does not say: how many."""
    count = 0
    position = new.at[CURSOR] - 1
    reach = max(new.at[FARTHEST], shift)
    while position >= 0 and state.high[position] + reach > new.at[NOW]:
        t = state.order[position]
        end = state.ready[t] + state.span[t]
        if not marked(new, t) and differs(new, end + shift_at(new, position), end, shift):
            new.order[count] = t
            count += 1
        position -= 1
    return count


@inlined
def mark_after(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> None:
    """Mark all that follows a task."""
    for edge in range(graph.succ_start[t], graph.succ_start[t + 1]):
        if graph.edge_live[edge] and not marked(new, graph.succ[edge]):
            mark(graph, state, new, graph.succ[edge], WAITING)


@inlined
def unmark(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Take the mark off tasks to come that are where the frame says, in their order."""
    sort_by_position(state, new)
    for at in range(new.at[IN_ACTIVE]):
        t = new.active[at]
        if not new.pinned[t] and state.position[t] >= new.at[CURSOR]:
            if new.state[t] == QUEUED:
                if new.ready[t] == state.ready[t] + new.at[SHIFT]:
                    new.mark[t] = 0
            elif new.state[t] == WAITING and predecessors_match_frame(graph, state, new, t):
                new.mark[t] = 0


@inlined
def sort_by_position(state: AcceptedMove, new: DeltaTrial) -> None:
    """Sort the active tasks by position; they nearly are."""
    for at in range(1, new.at[IN_ACTIVE]):
        t = new.active[at]
        place = at
        while place > 0 and state.position[new.active[place - 1]] > state.position[t]:
            new.active[place] = new.active[place - 1]
            place -= 1
        new.active[place] = t


@inlined
def predecessors_match_frame(
    graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int
) -> bool:
    """Whether all before a waiting task is, or will be, where the frame says."""
    for at in range(graph.pred_start[t], graph.pred_start[t + 1]):
        if graph.edge_live[graph.pred_edge[at]]:
            before = graph.pred[at]
            position = state.position[before]
            old_end = state.ready[before] + state.span[before]
            if marked(new, before):
                if new.state[before] != DONE or position < 0:
                    return False
                if differs(new, new.ready[before] + new.span[before], old_end, new.at[SHIFT]):
                    return False
            elif position < new.at[CURSOR]:
                end = old_end + shift_at(new, position)
                if differs(new, end, old_end, new.at[SHIFT]):
                    return False
    return True


@inlined
def compact(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial) -> None:
    """Keep the active tasks that still matter; stop at them; examine and mark anew."""
    bits = new.at[BITS]
    kept = 0
    new.at[IN_QUEUE] = 0
    for at in range(new.at[IN_ACTIVE]):
        t = new.active[at]
        if not marked(new, t):
            continue
        new.active[kept] = t
        kept += 1
        if state.position[t] >= new.at[CURSOR]:
            stop_at(new, state.position[t])
        if new.state[t] == QUEUED:
            new.at[IN_QUEUE] = push(new.queue, new.at[IN_QUEUE], (new.ready[t] << bits) | t)
    new.at[IN_ACTIVE] = kept
    for at in range(kept):
        t = new.active[at]
        if new.state[t] == WAITING:
            new.todo[new.at[IN_TODO]] = t
            new.at[IN_TODO] += 1
    for at in range(kept):
        t = new.active[at]
        if new.state[t] == DONE:
            if state.position[t] >= 0 and differs(
                new,
                new.ready[t] + new.span[t],
                state.ready[t] + state.span[t],
                new.at[SHIFT],
            ):
                mark_after(graph, state, new, t)
        elif new.state[t] != GONE and state.position[t] < new.at[CURSOR]:
            mark_after(graph, state, new, t)
