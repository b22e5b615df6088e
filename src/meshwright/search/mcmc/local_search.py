"""First-improvement local search over the layouts of single op groups. Compiled. Enters: a walk's
state. Leaves: the same, cheaper, and whether every change of a single unit was tried in vain.

The layouts of a unit are tried one after the other: all of them if they are at most MOST, else all
that differ from the current one in at most two factors. The first that is cheaper is kept. When as
many units in a row as there are had none, the layouts are locally optimal. Of two that cost the
same the one that moves less is the better.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from meshwright.base.compiled import compiled, copy_row
from meshwright.search.mcmc.metropolis import (
    ACCEPTED,
    BEST,
    COST,
    PROPOSED,
    REFUSED,
    ChainBuffers,
    MetropolisChain,
    keep,
    proposal_cost,
    refuse,
)
from meshwright.simulate.edge_collectives import FOUND, ILLEGAL
from meshwright.simulate.layout_space import LayoutSpace
from meshwright.simulate.move import BUNDLES, EDGES, TASKS, MoveBuffers, MoveUndo, apply, undo_move
from meshwright.simulate.task_template import Floats
from meshwright.simulate.tasks import Ints

MOST: Final = 4096
"""Layouts of a unit that are all tried."""

UNIT, INDEX, VAIN = range(3)
"""In the place of a descent: the unit at hand, the layout to try next, units in a row in vain."""


def place() -> Ints:
    """Where a descent begins."""
    return np.zeros(3, np.int64)


@compiled
def layouts_of(room: LayoutSpace, unit: int) -> int:
    """How many layouts of a unit are tried."""
    factors, every, pairs = room.roles.shape[1], 1, 1
    for f in range(factors):
        every *= room.roles[unit, f]
        for g in range(f):
            pairs += room.roles[unit, f] * room.roles[unit, g]
    if every <= MOST:
        return every
    return pairs


@compiled
def _write_layout(
    now: MoveBuffers, room: LayoutSpace, table: ChainBuffers, unit: int, index: int
) -> None:
    """Put one of the layouts that are tried onto the desk."""
    factors, every = room.roles.shape[1], 1
    for f in range(factors):
        every *= room.roles[unit, f]
    copy_row(now.roles, unit, table.roles, 0)
    table.unit[0] = unit
    if every <= MOST:
        for f in range(factors):
            table.roles[0, f] = room.role[unit, f, index % room.roles[unit, f]]
            index //= room.roles[unit, f]
        return
    for f in range(factors):
        for g in range(f):
            pairs = room.roles[unit, f] * room.roles[unit, g]
            if index < pairs:
                table.roles[0, f] = room.role[unit, f, index % room.roles[unit, f]]
                table.roles[0, g] = room.role[unit, g, index // room.roles[unit, f]]
                return
            index -= pairs


@compiled
def _moves_less(log: MoveUndo, moved: Floats) -> bool:
    """Whether a change saves a byte or more."""
    more = 0.0
    for i in range(log.number[BUNDLES]):
        b = log.bundle[i]
        for way in range(2):
            more += moved[b, way] - log.moved[b, way]
    return more <= -1.0


@compiled
def descend(
    now: MoveBuffers,
    log: MoveUndo,
    room: LayoutSpace,
    walk: MetropolisChain,
    table: ChainBuffers,
    where: Ints,
    trials: int,
) -> int:
    """Try so many layouts, or until all were tried in vain; FOUND, or what a table lacks."""
    number, tasks, roles, moved = walk.number, now.tasks, now.roles, now.room.moved
    units = len(roles)
    last = number[PROPOSED] + trials
    while number[PROPOSED] < last and where[VAIN] < units:
        unit = where[UNIT]
        if where[INDEX] >= layouts_of(room, unit):
            where[UNIT], where[INDEX] = (unit + 1) % units, 0
            where[VAIN] += 1
            continue
        _write_layout(now, room, table, unit, where[INDEX])
        status = apply(now, log, table.unit, table.roles, 1)
        if status != FOUND and status != ILLEGAL:
            return status
        number[PROPOSED] += 1
        where[INDEX] += 1
        if status == ILLEGAL:
            number[REFUSED] += 1
            continue
        if log.number[TASKS] == 0 and log.number[EDGES] == 0:
            undo_move(tasks, roles, moved, log)
            continue
        cost = proposal_cost(tasks, log, table, number[COST])
        if cost > number[COST] or (cost == number[COST] and not _moves_less(log, moved)):
            refuse(now, log, table)
            continue
        keep(tasks, table)
        number[ACCEPTED] += 1
        number[COST] = cost
        where[VAIN] = -1
        number[BEST] = cost
        for u in range(units):
            copy_row(roles, u, walk.best, u)
    return FOUND
