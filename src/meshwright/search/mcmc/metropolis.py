"""The Metropolis chain over layouts (Metropolis et al. 1953; FlexFlow, section 6). Compiled.
Enters: a board, a space of roles, a state. Leaves: the state so many proposals later.

With cost c of the current layouts and c' of the proposed ones a proposal is taken with probability
    min(1, exp((c - c') / temperature)),
true Metropolis, as all four kinds of proposals are symmetric (as likely forwards as backwards):
    redraw   one unit gets for every factor a role drawn anew, all alike
    retouch  one unit gets for one factor a role drawn anew
    rotate   some units in a row move on along the list of their roles for one factor, all by the
             same number of places, which is as likely to be k as -k
    regroup  the same, for one or more factors, of all units that share parameters with one, or of
             all that run the same calls: what is used together can move together
A proposal that cannot be cut so is refused and counts. If a table lacks a row, the walk goes back
to before the proposal and says so; supplied, it draws the same again.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled, copy_row
from meshwright.search.mcmc.load_bound import ResourceMembers, heaviest, members, shift
from meshwright.sharding.reshard import Codes
from meshwright.simulate import full
from meshwright.simulate.delta.engine import Delta, commit, propose
from meshwright.simulate.delta.state import AcceptedMove, DeltaTrial
from meshwright.simulate.edge_collectives import FOUND, ILLEGAL
from meshwright.simulate.full import EngineScratch
from meshwright.simulate.layout_space import LayoutSpace
from meshwright.simulate.move import EDGES, TASKS, MoveBuffers, MoveUndo, apply, undo_move
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Indices, Ints, TaskGraph, Timeline

Engine = Literal["delta", "full"]

LONGEST: Final = 64
"""Units that one proposal may change."""

ROW: Final = 16
"""Units in a row that one proposal may change."""


class MetropolisChain(NamedTuple):
    """Where a walk is."""

    random: NDArray[np.uint64]
    """[1] the state of its random numbers."""
    number: Ints
    """[6] see the names below."""
    temperature: NDArray[np.float64]
    """[1] in nanoseconds."""
    best: Codes
    """[units, factors] of the cheapest layouts so far."""


COST, BEST, PROPOSED, ACCEPTED, IMPROVED, REFUSED = range(6)
"""In `MetropolisChain.number`: the current and the lowest cost, how many proposals were made, how
many taken, which was the last to lower the lowest, and how many could not be cut."""


class ChainBuffers(NamedTuple):
    """Room for proposals, and the engines."""

    unit: Indices
    roles: Codes
    delta: bool
    """Whether proposals are priced by the delta engine or by the full one."""
    work: EngineScratch
    timeline: Timeline
    state: AcceptedMove
    trial: DeltaTrial
    members: ResourceMembers
    load: Ints
    """[resources] those of `state` before the change whose cost was asked for last."""


def chain_buffers(problem: StepModel, engine: Engine = "delta") -> ChainBuffers:
    """Room for one walk that starts from the layouts which the problem holds."""
    delta = Delta(problem.tasks)
    return ChainBuffers(
        unit=np.zeros(LONGEST, np.int32),
        roles=np.zeros((LONGEST, len(problem.factors)), np.int8),
        delta=engine == "delta",
        work=full.scratch(problem.tasks),
        timeline=full.timeline_of(problem.tasks),
        state=delta.state,
        trial=delta.trial,
        members=members(problem.tasks),
        load=delta.state.load.copy(),
    )


@compiled
def below(random: NDArray[np.uint64], bound: int) -> int:
    """A random number from 0 to bound - 1 (splitmix64)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return int((z >> np.uint64(11)) % np.uint64(bound))


@compiled
def fraction(random: NDArray[np.uint64]) -> float:
    """A random number from 0 to 1, 0 not included."""
    return (below(random, 1 << 52) + 1) / (1 << 52)


@compiled
def _draw(now: MoveBuffers, room: LayoutSpace, walk: MetropolisChain, table: ChainBuffers) -> int:
    """Draw a proposal; leaves how many units it changes."""
    units, factors = now.roles.shape
    unit = below(walk.random, units)
    kind = below(walk.random, 10)
    if kind < 6:
        table.unit[0] = unit
        copy_row(now.roles, unit, table.roles, 0)
        f = below(walk.random, factors)
        for g in range(factors):
            if kind < 3 or g == f:
                drawn = below(walk.random, room.roles[unit, g])
                table.roles[0, g] = room.role[unit, g, drawn]
        return 1
    if kind < 8:
        count = min(1 + below(walk.random, ROW), units - unit)
        for i in range(count):
            table.unit[i] = unit + i
    else:
        count = _draw_group(room, walk, table, unit)
    for i in range(count):
        copy_row(now.roles, table.unit[i], table.roles, i)
    f = below(walk.random, factors)
    for g in range(factors):
        if g == f or (kind >= 8 and below(walk.random, 4) == 0):
            _rotate(room, walk, table, count, g)
    return int(count)


@compiled
def _draw_group(room: LayoutSpace, walk: MetropolisChain, table: ChainBuffers, unit: int) -> int:
    """Put a group of a unit onto the desk, or as many in a row of it as there is room for."""
    which = below(walk.random, 2)
    number = room.group[which, unit]
    first, last = room.group_start[which, number], room.group_start[which, number + 1]
    if last - first > LONGEST:
        first += below(walk.random, last - first - LONGEST + 1)
        last = first + LONGEST
    for i in range(last - first):
        table.unit[i] = room.member[which, first + i]
    return int(last - first)


@compiled
def _rotate(
    room: LayoutSpace, walk: MetropolisChain, table: ChainBuffers, count: int, f: int
) -> None:
    """Move units on along the list of their roles for a factor, all by as many places."""
    step = 1 + below(walk.random, room.role.shape[2])
    if below(walk.random, 2):
        step = -step
    for i in range(count):
        unit, held = table.unit[i], 0
        while room.role[unit, f, held] != table.roles[i, f]:
            held += 1
        table.roles[i, f] = room.role[unit, f, (held + step) % room.roles[unit, f]]


@compiled
def proposal_cost(tasks: TaskGraph, log: MoveUndo, table: ChainBuffers, limit: float) -> int:
    """The makespan of the task graph with a change, or some lower bound of it above the limit."""
    if table.delta:
        state, before = table.state, table.load
        load = state.load
        for r in range(len(load)):
            before[r] = load[r]
        shift(tasks, log, table.members, state.bits, load)
        bound = heaviest(load)
        if bound > limit:
            return bound
        touched, edges = log.task[: log.number[TASKS]], log.edge[: log.number[EDGES]]
        return propose(tasks, state, table.trial, touched, edges, math.floor(limit))
    _, makespan = full.run(tasks, table.work, table.timeline)
    return makespan


@compiled
def keep(tasks: TaskGraph, table: ChainBuffers) -> None:
    """Accept the change whose cost was asked for last."""
    if table.delta:
        commit(tasks, table.state, table.trial)


@compiled
def refuse(now: MoveBuffers, log: MoveUndo, table: ChainBuffers) -> None:
    """Take back the change whose cost was asked for last."""
    if table.delta:
        load, before = table.state.load, table.load
        for r in range(len(load)):
            load[r] = before[r]
    undo_move(now.tasks, now.roles, now.room.moved, log)


@compiled
def run_metropolis(
    now: MoveBuffers,
    log: MoveUndo,
    room: LayoutSpace,
    walk: MetropolisChain,
    table: ChainBuffers,
    proposals: int,
) -> int:
    """Make so many proposals; FOUND, or what a table lacks."""
    number, tasks, roles = walk.number, now.tasks, now.roles
    last = number[PROPOSED] + proposals
    while number[PROPOSED] < last:
        before = walk.random[0]
        count = _draw(now, room, walk, table)
        chance = fraction(walk.random)
        status = apply(now, log, table.unit, table.roles, count)
        if status == ILLEGAL:
            number[PROPOSED] += 1
            number[REFUSED] += 1
            continue
        if status != FOUND:
            walk.random[0] = before
            return status
        number[PROPOSED] += 1
        number[ACCEPTED] += 1
        if log.number[TASKS] == 0 and log.number[EDGES] == 0:
            continue
        limit = number[COST] - walk.temperature[0] * math.log(chance)
        cost = proposal_cost(tasks, log, table, limit)
        if cost > limit:
            refuse(now, log, table)
            number[ACCEPTED] -= 1
            continue
        keep(tasks, table)
        number[COST] = cost
        if cost < number[BEST]:
            number[BEST] = cost
            number[IMPROVED] = number[PROPOSED]
            for unit in range(len(roles)):
                copy_row(roles, unit, walk.best, unit)
    return FOUND
