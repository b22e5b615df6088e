"""The delta engine."""

from __future__ import annotations

import numpy as np

from meshwright.simulate import full
from meshwright.simulate.compiled import bits_of_numbers, compiled
from meshwright.simulate.delta_frames import move_frame
from meshwright.simulate.delta_state import (
    BITS,
    CANDIDATE,
    CURSOR,
    EPOCH,
    FARTHEST,
    FIRST,
    FRAMES,
    GONE,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    IN_QUEUE,
    IN_STOPS,
    IN_TODO,
    MAKESPAN,
    NOW,
    PATIENCE,
    SHIFT,
    STALE,
    VOTES,
    WAITING,
    WHOLE,
    Accepted,
    Trial,
    accept_whole,
    accepted,
    copy_row,
    summarise,
    trial,
)
from meshwright.simulate.delta_walk import (
    NEVER,
    examine_all,
    key_at,
    mark,
    marked,
    step,
)
from meshwright.simulate.tasks import Indices, TaskGraph, Timeline


@compiled
def propose(graph: TaskGraph, state: Accepted, new: Trial, touched: Indices, edges: Indices) -> int:
    """Makespan of the graph as changed."""
    begin(graph, state, new, touched, edges)
    patience = new.at[PATIENCE]
    election = 6
    while step(graph, state, new):
        if new.at[IN_DONE] > patience:
            count, makespan = full.run(graph, new.work, new.whole)
            new.at[WHOLE] = count
            return makespan
        if new.at[VOTES] >= election:
            examine_all(graph, state, new)
            first = new.queue[0] if new.at[IN_QUEUE] > 0 else NEVER
            if new.at[CURSOR] < state.size[0]:
                first = min(first, key_at(state, new, new.at[CURSOR], new.at[SHIFT]))
            if first != NEVER and new.at[NOW] > 0 and new.at[IN_FRAMES] < FRAMES:
                move_frame(graph, state, new, new.at[CANDIDATE], first)
                election += 4
            new.at[VOTES] = 0
    return new.at[MAKESPAN]


@compiled
def begin(graph: TaskGraph, state: Accepted, new: Trial, touched: Indices, edges: Indices) -> None:
    """Start a trial: nothing moved yet, marks on what was changed."""
    at = new.at
    at[EPOCH] += 1
    for place in (
        CURSOR,
        SHIFT,
        NOW,
        IN_QUEUE,
        IN_STOPS,
        IN_ACTIVE,
        IN_DONE,
        IN_TODO,
        FARTHEST,
        STALE,
        VOTES,
        MAKESPAN,
        WHOLE,
    ):
        at[place] = 0
    at[IN_FRAMES] = 1
    at[BITS] = bits_of_numbers(len(graph.live))
    new.frame_from[0] = 0
    new.frame_shift[0] = 0
    new.dirty[:] = 0
    for t in touched:
        if not marked(new, t):
            mark(graph, state, new, t, WAITING if graph.live[t] else GONE)
            new.pinned[t] = True
    for edge in edges:
        t = graph.succ[edge]
        if not marked(new, t):
            mark(graph, state, new, t, WAITING if graph.live[t] else GONE)
            new.pinned[t] = True
    examine_all(graph, state, new)
    at[FIRST] = state.size[0]
    if at[IN_QUEUE] > 0:
        at[FIRST] = 0
    elif at[IN_STOPS] > 0:
        at[FIRST] = new.stops[0]


@compiled
def commit(graph: TaskGraph, state: Accepted, new: Trial) -> None:
    """Make the trial the accepted timeline."""
    at = new.at
    if at[WHOLE]:
        accept_whole(graph, new.whole, at[WHOLE], new.work.free, state)
        return
    sort_done(new)
    first = at[FIRST]
    count = first
    done = 0
    position = first
    frame = 0
    old_count = state.size[0]
    while position < old_count or done < at[IN_DONE]:
        if position < old_count:
            t = state.order[position]
            if marked(new, t):
                position += 1
                continue
            while frame + 1 < at[IN_FRAMES] and new.frame_from[frame + 1] <= position:
                frame += 1
            ready = state.ready[t] + new.frame_shift[frame]
            if done < at[IN_DONE]:
                other = new.done[done]
                if new.ready[other] < ready or (new.ready[other] == ready and other < t):
                    new.order[count] = other
                    count += 1
                    done += 1
                    continue
            state.ready[t] = ready
            new.order[count] = t
            position += 1
        else:
            new.order[count] = new.done[done]
            done += 1
        count += 1
    for index in range(at[IN_ACTIVE]):
        t = new.active[index]
        if new.state[t] == GONE:
            state.position[t] = -1
            state.ready[t] = state.span[t] = state.lag[t] = state.tail[t] = 0
    for index in range(at[IN_DONE]):
        t = new.done[index]
        state.ready[t] = new.ready[t]
        state.span[t] = new.span[t]
        state.lag[t] = new.lag[t]
        state.tail[t] = new.tail[t]
        copy_row(state.until, new.until, t)
        state.joint[t] = graph.joint[t]
        state.places[t, 0], state.places[t, 1] = graph.places[t, 0], graph.places[t, 1]
    for position in range(first, count):
        t = new.order[position]
        state.order[position] = t
        state.position[t] = position
    state.size[0] = count
    summarise(state, first)


@compiled
def sort_done(new: Trial) -> None:
    for at in range(1, new.at[IN_DONE]):
        t = new.done[at]
        place = at
        while place > 0:
            other = new.done[place - 1]
            if new.ready[other] < new.ready[t] or (new.ready[other] == new.ready[t] and other < t):
                break
            new.done[place] = other
            place -= 1
        new.done[place] = t


class Delta:
    """A graph under change."""

    def __init__(self, graph: TaskGraph, patience: int | None = None) -> None:
        self.graph = graph
        self.state = accepted(graph)
        self.trial = trial(graph, self.state)
        self.trial.at[PATIENCE] = len(graph.live) if patience is None else patience

    def propose(self, touched, edges) -> int:
        return propose(
            self.graph,
            self.state,
            self.trial,
            np.asarray(touched, np.int32),
            np.asarray(edges, np.int32),
        )

    def commit(self) -> None:
        commit(self.graph, self.state, self.trial)

    def timeline(self) -> Timeline:
        s = self.state
        z = s.position >= 0
        return Timeline(
            np.where(z, s.ready, 0),
            np.where(z, s.ready + s.lag, 0),
            np.where(z, s.ready + s.span, 0),
            s.order[: s.size[0]].copy(),
        )
