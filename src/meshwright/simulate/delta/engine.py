"""The delta engine (FlexFlow, section 5.3): re-simulates only what a change affects.

Enters: a graph that was changed in place, its accepted timeline, the tasks touched (live, duration,
joint, places, hold) and the edges flipped. Leaves: exactly the makespan that `full` would give and,
once committed, exactly its timeline. A trial that is not committed is simply forgotten.

A *frame* is a shift d. The cursor goes through the accepted order; a task at it that is not
*marked* takes part as it did, d later. Marked tasks are simulated one by one through a queue.
Whichever is first by (ready, number), the task at the cursor or that of the queue, comes next. Let
now be the time of the next, and let x ~ y mean max(x, now) - d = max(y, now - d): x is y moved by
d as far as anything to come can tell, since nothing to come is ready before now. Between two steps
    (1) for every resource that is not dirty, free in the trial ~ free in the accepted order before
        the cursor;
    (2) an unmarked task at or after the cursor has its accepted predecessors, and each of them has
        ended with end ~ accepted end, or is at or after the cursor itself.
By (1) and (2) the unmarked task at the cursor is ready d later than it was and, if it uses nothing
dirty, starts on every resource d later, so that both still hold when the cursor has passed it: a
whole stretch without marks and dirt is passed in one jump. What would break them is marked first:
    touched tasks and those with flipped edges before them, at the beginning     (`begin`)
    an unmarked task that may use a dirty resource, when the cursor comes to it
                                                                          (`uses_dirty_resource`)
    what follows a marked task that ends elsewhere than d later, or that the cursor passes while it
    has not taken its resources                                                  (`delta_walk.tell`)
and resources that a marked task takes, or took, are dirty until they are found clean. Most changes
move all that follows by one shift, and so would mark it all: the shift of the marked tasks is
counted, and once one is frequent it becomes the frame's: (1) and (2) are established anew for it,
and tasks that are again where they were, but moved, lose their marks (`delta_frames.move_frame`).
Choosing the shift badly costs time and nothing else.

A search refuses most proposals: it gives the cost from which on it does, and a trial that is known
to be above is stopped (`delta_limit`).
"""

from __future__ import annotations

import numpy as np

from meshwright.base.compiled import compiled, inlined
from meshwright.simulate import full
from meshwright.simulate.delta.accept import accepted, trial
from meshwright.simulate.delta.commit import commit as commit
from meshwright.simulate.delta.frames import move_frame
from meshwright.simulate.delta.limit import sum_loads
from meshwright.simulate.delta.state import (
    BITS,
    BLIND,
    BOUND,
    CANDIDATE,
    CURSOR,
    EPOCH,
    FIRST,
    FRAMES,
    GONE,
    IN_ACTIVE,
    IN_DONE,
    IN_FRAMES,
    IN_QUEUE,
    IN_STOPS,
    LAST_EPOCH,
    MAKESPAN,
    PATIENCE,
    PENALTY,
    SHIFT,
    VOTES,
    WAITING,
    WHOLE,
    AcceptedMove,
    DeltaTrial,
)
from meshwright.simulate.delta.walk import NEVER, examine_all, key_at, mark, marked, step
from meshwright.simulate.queue import bits_of_numbers
from meshwright.simulate.tasks import Indices, TaskGraph, Timeline

CYCLE = -1
"""The makespan of a graph whose live edges have a cycle."""

ELECTION = 6
"""Votes that a shift needs to become the frame's, the first time."""

ELECTION_GROWTH = 4
"""How many more each next time, so that moving between frames cannot take over."""

WORST_PENALTY = 15
"""The most trials simulated whole after one that gave up; twice as many each time, and one more."""


class Delta:
    """A graph under change, for tests and tools; a search calls the compiled functions itself.

    It gives up on a trial that has simulated more than `patience` tasks one by one, by default as
    many as half of all, and simulates everything; and after that some of the next without trying.
    """

    def __init__(self, graph: TaskGraph, patience: int | None = None) -> None:
        self.graph = graph
        self.state = accepted(graph)
        self.trial = trial(graph)
        if patience is not None:
            self.trial.at[PATIENCE] = patience

    def propose(self, touched: Indices, edges: Indices, limit: int = NEVER) -> int:
        """The makespan after the graph was changed, or some lower bound of it above a limit."""
        if limit != NEVER:
            sum_loads(self.graph, self.state, self.trial.uses)
        makespan = propose(self.graph, self.state, self.trial, touched, edges, limit)
        assert makespan != CYCLE, "the live edges have a cycle"
        return int(makespan)

    def commit(self) -> None:
        """Accept what was proposed; otherwise undo the change of the graph and propose the next."""
        commit(self.graph, self.state, self.trial)

    @property
    def timeline(self) -> Timeline:
        """The accepted timeline."""
        return timeline_of(self.state)


def timeline_of(state: AcceptedMove) -> Timeline:
    """The accepted timeline, in whole times."""
    takes_part = state.position >= 0
    ready = np.where(takes_part, state.ready, 0)
    start = np.where(takes_part, ready + state.lag, 0)
    end = np.where(takes_part, ready + state.span, 0)
    return Timeline(ready, start, end, state.order[: state.size[0]].copy())


@compiled
def propose(
    graph: TaskGraph,
    state: AcceptedMove,
    new: DeltaTrial,
    touched: Indices,
    edges: Indices,
    limit: int,
) -> int:
    """The makespan of a changed graph, or CYCLE; the trial is ready to be committed.

    Or some lower bound of the makespan above the limit, and then it is not. A limit needs `load`,
    and tasks that hold no resource longer than they last.
    """
    if new.at[BLIND] > 0:
        new.at[BLIND] -= 1
        return simulate_whole(graph, new)
    begin(graph, state, new, touched, edges)
    needed = ELECTION
    while step(graph, state, new):
        if new.at[BOUND] > limit:
            break
        if new.at[IN_DONE] > new.at[PATIENCE]:
            new.at[PENALTY] = min(2 * new.at[PENALTY] + 1, WORST_PENALTY)
            new.at[BLIND] = new.at[PENALTY]
            return simulate_whole(graph, new)
        if new.at[VOTES] >= needed:
            new.at[VOTES] = 0
            examine_all(graph, state, new)
            key = next_key(state, new)
            # Without a predecessor a task is ready at 0 whatever the frame: none may be left.
            if key != NEVER and key >> new.at[BITS] > 0 and new.at[IN_FRAMES] < FRAMES:
                move_frame(graph, state, new, new.at[CANDIDATE], key)
                needed += ELECTION_GROWTH
    new.at[PENALTY] //= 2
    if new.at[BOUND] > limit:
        return int(new.at[BOUND])
    for at in range(new.at[IN_ACTIVE]):
        if new.state[new.active[at]] == WAITING:
            return CYCLE
    return int(new.at[MAKESPAN])


@compiled
def simulate_whole(graph: TaskGraph, new: DeltaTrial) -> int:
    """Simulate everything; the makespan, or CYCLE."""
    count, makespan = full.run(graph, new.work, new.whole)
    new.at[WHOLE] = count + 1
    return makespan if count == graph.live.sum() else CYCLE


@inlined
def next_key(state: AcceptedMove, new: DeltaTrial) -> int:
    """The key of the next step's task, or NEVER."""
    key = new.queue[0] if new.at[IN_QUEUE] > 0 else NEVER
    if new.at[CURSOR] < state.size[0]:
        key = min(key, key_at(state, new, new.at[CURSOR], new.at[SHIFT]))
    return key


@inlined
def begin(
    graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, touched: Indices, edges: Indices
) -> None:
    """Forget the last trial; mark what was touched."""
    epoch, patience, penalty = new.at[EPOCH], new.at[PATIENCE], new.at[PENALTY]
    if epoch == LAST_EPOCH:
        epoch = 0
        new.mark[:] = 0
        new.stop[:] = 0
        new.watched[:] = 0
    new.at[:] = 0
    new.at[EPOCH], new.at[PATIENCE], new.at[PENALTY] = epoch + 1, patience, penalty
    new.at[BITS] = bits_of_numbers(len(graph.live))
    new.frame_from[0], new.frame_shift[0] = 0, 0
    new.at[IN_FRAMES] = 1
    new.dirty[:] = 0
    new.ahead[:] = 0
    for at in range(len(touched) + len(edges)):
        t = touched[at] if at < len(touched) else graph.succ[edges[at - len(touched)]]
        if not marked(new, t):
            mark(graph, state, new, t, WAITING if graph.live[t] else GONE)
            new.pinned[t] = True
    examine_all(graph, state, new)
    new.at[FIRST] = new.stops[0] if new.at[IN_STOPS] > 0 else state.size[0]
    if new.at[IN_QUEUE] > 0:
        new.at[FIRST] = 0
