"""Counterfactual layouts: the runner-up of a decision. Compiled. Enters: a laid-out problem.
Leaves: for a class of units the change that costs least, everything else being kept.

A class has the units at one place of a repeated layer that are laid out alike; other units are
classes by themselves. A change gives one or two factors other roles, the same in all units of the
class. In a pipeline coordinates stay what they are: what lies on another stage runs in another
order. Changes of one factor are tried first; each is simulated by the delta engine only as far as
it can still be the best (`least`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Final, NamedTuple

import numpy as np

from meshwright.base.compiled import compiled, copy_row
from meshwright.graph.layers import layers
from meshwright.search.mcmc.metropolis import ChainBuffers, chain_buffers, proposal_cost, refuse
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import is_at
from meshwright.simulate.edge_collectives import FOUND, ILLEGAL
from meshwright.simulate.layout_space import LayoutSpace, space
from meshwright.simulate.move import (
    EDGES,
    TASKS,
    MoveBuffers,
    MoveUndo,
    apply,
    move_buffers,
    undo,
    undo_move,
)
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Indices, Ints

NEVER: Final = 1 << 62
"""A makespan that any change beats."""

SAME: Final = -1
"""In place of a factor: nothing else changes."""

Change = tuple[int, int, int, int]
"""A factor and its new role, another one and its new role, or SAME and anything."""


class OpGroupClass(NamedTuple):
    """Units that were decided together."""

    units: tuple[int, ...]
    nanoseconds: int
    """Of all their tasks and of what they send, one after the other."""


class RunnerUp(NamedTuple):
    """The best other layout of a class."""

    roles: Codes
    """[units, factors] of the whole graph, with the change."""
    nanoseconds: int
    tried: int


def classes(problem: StepModel) -> list[OpGroupClass]:
    """The classes of the layouts that a problem holds, the most expensive first."""
    place = {
        problem.graph.operators[position].name: (repeat.start, position - repeat.layer(index).start)
        for repeat in layers(problem.graph)
        for index in range(repeat.count)
        for position in repeat.layer(index)
    }
    labels, tasks, cost = problem.labels, problem.tasks, np.zeros(len(problem.units), np.int64)
    for task in np.flatnonzero(tasks.live):
        subject = int(labels.subject[task])
        whose = (
            subject
            if labels.kind[task] in ("forward", "backward")
            else problem.bundles[subject].maker
        )
        cost[whose] += tasks.duration[task]
    alike: dict[object, list[int]] = {}
    for number, unit in enumerate(problem.units):
        row = tuple(_masked(problem, role) for role in problem.roles[number].tolist())
        key = (place.get(unit.name, unit.name), int(problem.times.type[number]), row)
        alike.setdefault(key, []).append(number)
    listed = [OpGroupClass(tuple(members), int(cost[members].sum())) for members in alike.values()]
    return sorted(listed, key=lambda unit_class: -unit_class.nanoseconds)


def _masked(problem: StepModel, role: int) -> int | None:
    """A role, None for any coordinate of a pipeline."""
    return None if is_at(role) and problem.options.micro_batches > 1 else role


def changes(problem: StepModel, room: LayoutSpace, unit: int) -> list[Change]:
    """The changes of a unit's roles for one factor, then for two."""
    current = problem.roles[unit].tolist()
    fixed = problem.options.micro_batches > 1
    others = [
        []
        if fixed and is_at(current[f])
        else [
            role
            for role in room.role[unit, f, : room.roles[unit, f]].tolist()
            if role != current[f] and not (fixed and is_at(role))
        ]
        for f in range(len(current))
    ]
    single = [(f, role, SAME, 0) for f, roles in enumerate(others) for role in roles]
    double = [
        (f, role, g, second)
        for f, g in combinations(range(len(current)), 2)
        for role, second in product(others[f], others[g])
    ]
    return single + double


class CounterfactualTrials:
    """A problem on which changes are tried and taken back."""

    def __init__(self, problem: StepModel, makespan: int, longest: int) -> None:
        self.problem = problem
        self._room, self._desk = space(problem), chain_buffers(problem)
        self._log: MoveUndo = undo(problem, longest)
        self._makespan = makespan

    def best(
        self, unit_class: OpGroupClass, most: int, turn: int, late: Callable[[], bool]
    ) -> RunnerUp | None:
        """The best of so many changes of a class; `late` is asked after every turn of some."""
        problem, units = self.problem, np.array(unit_class.units, np.int32)
        tried = np.array(
            changes(problem, self._room, unit_class.units[0])[:most], np.int64
        ).reshape(-1, 4)
        rows = np.zeros((len(units), len(problem.factors)), np.int8)
        at, lowest = np.zeros(1, np.int64), np.array([NEVER, SAME, self._makespan])
        while at[0] < len(tried) and not (at[0] and late()):
            last = min(len(tried), int(at[0]) + turn)
            status = least(
                move_buffers(problem), self._log, self._desk, units, rows, tried, last, at, lowest
            )
            if status != FOUND:
                problem.supply(status)
        if lowest[1] == SAME:
            return None
        roles = problem.roles.copy()
        f, role, g, second = map(int, tried[lowest[1]])
        roles[units, f] = role
        if g != SAME:
            roles[units, g] = second
        return RunnerUp(roles, int(lowest[0]), int(at[0]))


@compiled
def least(
    now: MoveBuffers,
    log: MoveUndo,
    table: ChainBuffers,
    units: Indices,
    rows: Codes,
    changes: Ints,
    last: int,
    at: Ints,
    lowest: Ints,
) -> int:
    """Try changes up to `last`; leaves the cheapest; FOUND, or what a table lacks.

    `lowest` has the cost of the cheapest, its number, and the cost without a change.
    """
    roles = now.roles
    while at[0] < last:
        f, g = changes[at[0], 0], changes[at[0], 2]
        for i in range(len(units)):
            copy_row(roles, units[i], rows, i)
            rows[i, f] = changes[at[0], 1]
            if g != SAME:
                rows[i, g] = changes[at[0], 3]
        status = apply(now, log, units, rows, len(units))
        if status != FOUND and status != ILLEGAL:
            return status
        if status == FOUND:
            if log.number[TASKS] == 0 and log.number[EDGES] == 0:
                cost = lowest[2]
                undo_move(now.tasks, roles, now.room.moved, log)
            else:
                cost = proposal_cost(now.tasks, log, table, float(lowest[0]))
                refuse(now, log, table)
            if cost < lowest[0]:
                lowest[0], lowest[1] = cost, at[0]
        at[0] += 1
    return FOUND
