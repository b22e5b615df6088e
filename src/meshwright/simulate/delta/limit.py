"""Early termination of a delta trial, by a load lower bound of its makespan. Enters: a trial
between two steps. Leaves: a lower bound of its makespan.

Let load(r) be the sum of what live tasks hold resource r for, and taken(r) that of those that took
it so far. All others take it later and one after the other, so that, if no task holds a resource
longer than it lasts,
    makespan >= free(r) + load(r) - taken(r)                                             (`reached`)
which grows with every moment for which r was left idle, and at the end is when r is free. One
resource of each kind is weighed so, the one with the largest load: as long as it is busy all the
time, any delay of it shows at once. taken(r) in the trial is taken(r) in the accepted order before
the cursor and `ahead`, by which marked tasks change it.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.compiled import compiled, inlined
from meshwright.simulate.delta.resource_lists import note_uses
from meshwright.simulate.delta.state import BOUND, CURSOR, AcceptedMove, DeltaTrial
from meshwright.simulate.tasks import NOWHERE, Ints, TaskGraph


@inlined
def uses(rows: Ints, t: int, r: int) -> bool:
    """Whether a resource is in a task's row of bits."""
    return bool((rows[t, r >> 6] >> np.int64(r & 63)) & 1)


@compiled
def sum_loads(graph: TaskGraph, state: AcceptedMove, rows: Ints) -> None:
    """What live tasks hold each resource for; the rows are of use meanwhile."""
    state.load[:] = 0
    for t in range(len(graph.live)):
        if graph.live[t]:
            note_uses(graph, state, rows, t)
            for r in range(len(state.load)):
                if uses(rows, t, r):
                    state.load[r] += graph.hold[t, graph.resource_kind[r]]


@compiled
def choose_bottleneck_resources(graph: TaskGraph, state: AcceptedMove) -> None:
    """Weigh the resource with the largest load of each kind."""
    state.weighed[:] = NOWHERE
    for r in range(len(state.load)):
        kind = graph.resource_kind[r]
        best = state.weighed[kind]
        if best == NOWHERE or state.load[r] > state.load[best]:
            state.weighed[kind] = r


@compiled
def update_prefix_loads(graph: TaskGraph, state: AcceptedMove) -> None:
    """Bring what is taken of the weighed resources before each position up to date."""
    choose_bottleneck_resources(graph, state)
    for kind in range(len(state.weighed)):
        r, taken = state.weighed[kind], 0
        for position in range(state.size[0]):
            state.taken[position, kind] = taken
            t = state.order[position]
            if r != NOWHERE and uses(state.uses, t, r):
                taken += graph.hold[t, kind]
        state.taken[state.size[0], kind] = taken


@inlined
def reached(graph: TaskGraph, state: AcceptedMove, new: DeltaTrial, t: int) -> None:
    """A marked task has taken its resources: what the makespan cannot be below."""
    for kind in range(len(state.weighed)):
        r = state.weighed[kind]
        if r != NOWHERE and uses(new.uses, t, r):
            new.ahead[kind] += graph.hold[t, kind]
            taken = state.taken[new.at[CURSOR], kind] + new.ahead[kind]
            new.at[BOUND] = max(new.at[BOUND], new.free_new[r] + state.load[r] - taken)


@inlined
def move_cursor(state: AcceptedMove, new: DeltaTrial, position: int) -> None:
    """Put the cursor elsewhere, though the trial has taken what it has."""
    for kind in range(len(state.weighed)):
        new.ahead[kind] += state.taken[new.at[CURSOR], kind] - state.taken[position, kind]
    new.at[CURSOR] = position
