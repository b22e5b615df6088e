"""Task durations by layout, tabulated for the exact search. Enters: a small problem. Leaves:
tables.

A bundle's tasks depend on the layouts of its maker and of its readers, so a table has a number for
all of their layouts together; a bundle for which that would be too many has none.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled, copy_row
from meshwright.base.errors import InputError
from meshwright.sharding.reshard import Codes
from meshwright.simulate.assign import assign_edge, key_of
from meshwright.simulate.collective_table import COMPUTE
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import space
from meshwright.simulate.move import MoveBuffers, move_buffers
from meshwright.simulate.problem import StepModel
from meshwright.simulate.resources import subcube
from meshwright.simulate.task_template import NONE
from meshwright.simulate.tasks import Indices
from meshwright.solvers.mini_buckets import Costs

MOST = 2_000_000
"""Layouts of a bundle's units together."""


def choices(problem: StepModel) -> tuple[Codes, ...]:
    """For every unit its legal layouts that are allowed, [layouts, factors]."""
    room, layouts = space(problem), []
    table, times = problem.prices.table, problem.times.table
    for unit, number in enumerate(problem.times.type):
        every = product(
            *(room.role[unit, f, :count].tolist() for f, count in enumerate(room.roles[unit]))
        )
        rows = list(every)
        roles = np.array(rows, np.int8).reshape(len(rows), len(problem.factors))
        legal = [key_of(int(number), layout, table, times) >= 0 for layout in roles]
        if not any(legal):
            raise InputError(
                f"unit {problem.units[unit].name!r} may have none of its layouts",
                "take away a constraint, or give fewer micro-batches",
            )
        layouts.append(roles[legal])
    return tuple(layouts)


class OpGroupDurations(NamedTuple):
    """For each layout of a unit."""

    forward: Costs
    backward: Costs
    share: Costs
    """Of all devices, how many work for it."""


def op_group_durations(problem: StepModel, unit: int, layouts: Codes) -> OpGroupDurations:
    """The durations of a unit's tasks in nanoseconds."""
    rows = []
    roles = problem.roles.copy()
    for layout in layouts:
        roles[unit] = layout
        problem.lay(roles)
        tasks = problem.tasks
        first, second = problem.template.forward[unit, 0], problem.template.backward[unit, 0]
        backward = tasks.duration[second] if tasks.live[second] else 0
        rows.append((tasks.duration[first], backward, _share(problem, layout)))
    return OpGroupDurations(*np.array(rows, np.float64).T)


def _share(problem: StepModel, roles: Codes) -> float:
    """The share of the devices that tell themselves apart on which a unit works."""
    places, kind = problem.places, problem.places.kind
    cube = subcube(roles, places.radix)
    used = places.set_resource[places.set_start[cube] : places.set_start[cube + 1]]
    return float((kind[used] == COMPUTE).sum() / (kind == COMPUTE).sum())


class EdgeDurations(NamedTuple):
    """For all layouts of a bundle's units, which are in rising order."""

    scope: tuple[int, ...]
    forward: Costs
    """[layouts of the first unit, ... of the last, consumers] what a consumer waits for"""
    backward: Costs
    """[layouts of the first unit, ... of the last, consumers] what follows a consumer"""
    update: Costs
    """[layouts of the first unit, ... of the last]"""

    def restricted(self, unit: int, layout: int) -> EdgeDurations:
        """The same with one layout left for a unit."""
        if unit not in self.scope:
            return self
        axis = self.scope.index(unit)
        return EdgeDurations(
            self.scope,
            *(
                np.take(durations, [layout], axis)
                for durations in (self.forward, self.backward, self.update)
            ),
        )


def edge_durations(problem: StepModel, b: int, layouts: tuple[Codes, ...]) -> EdgeDurations | None:
    """The durations of a bundle's tasks in nanoseconds, or None if there are too many."""
    bundle = problem.bundles[b]
    scope = tuple(sorted({bundle.maker, *(consumer.unit for consumer in bundle.consumers)}))
    sizes = [len(layouts[unit]) for unit in scope]
    rows, consumers = prod(sizes), len(bundle.consumers)
    if rows * max(1, consumers) > MOST:
        return None
    padded = np.zeros((len(scope), max(sizes), len(problem.factors)), np.int8)
    for i, unit in enumerate(scope):
        padded[i, : sizes[i]] = layouts[unit]
    forward, backward, update = (
        np.zeros((rows, consumers)),
        np.zeros((rows, consumers)),
        np.zeros(rows),
    )
    units, counts = np.array(scope, np.int32), np.array(sizes, np.int32)
    at = np.zeros(1, np.int64)
    while True:
        status = _fill(
            move_buffers(problem), b, units, counts, padded, forward, backward, update, at
        )
        if status == FOUND:
            break
        problem.supply(status)
    return EdgeDurations(
        scope,
        forward.reshape(*sizes, consumers),
        backward.reshape(*sizes, consumers),
        update.reshape(sizes),
    )


@compiled
def _fill(
    now: MoveBuffers,
    b: int,
    units: Indices,
    counts: Indices,
    layouts: np.ndarray[tuple[int, int, int], np.dtype[np.int8]],
    forward: Costs,
    backward: Costs,
    update: Costs,
    at: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> int:
    """Fill the rows from `at` on; FOUND, or what a table lacks."""
    template, tasks = now.template, now.tasks
    first = template.leg_start[b]
    while at[0] < len(update):
        row, rest = at[0], at[0]
        for i in range(len(units) - 1, -1, -1):
            copy_row(layouts[i], rest % counts[i], now.roles, units[i])
            rest //= counts[i]
        status = assign_edge(
            template, tasks, now.table, now.rates, now.radix, b, now.roles, now.room
        )
        if status != FOUND:
            return status
        carry, returns, changes = (
            template.carry[b, 0],
            template.carry_back[b, 0],
            template.update[b],
        )
        for consumer in range(forward.shape[1]):
            if tasks.live[carry] and tasks.edge_live[template.leg_edge[first + consumer, 0]]:
                forward[row, consumer] = tasks.duration[carry]
            if tasks.live[returns] and tasks.edge_live[template.leg_back_edge[first + consumer, 0]]:
                backward[row, consumer] = tasks.duration[returns]
        if changes != NONE and tasks.live[changes]:
            update[row] = tasks.duration[changes]
        at[0] += 1
    return FOUND
