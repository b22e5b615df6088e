"""A search move (FlexFlow's proposal): one changed layout, applied and undone. Compiled.

Enters: a set-up problem, units and their new roles. Leaves: the task graph with the change, and
lists of the tasks and edges that it touched, with what they were before. What a change costs is
told by an engine, whether it is kept by a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled, copy_row
from meshwright.sharding.reshard import Codes
from meshwright.simulate.assign import AssignmentRates, assign_edge, assign_op_group
from meshwright.simulate.collective_table import CollectiveTable
from meshwright.simulate.edge_collectives import FOUND, Workspace
from meshwright.simulate.operator_table import TimeTable
from meshwright.simulate.problem import StepModel
from meshwright.simulate.task_template import NONE, Floats, TaskTemplate
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph


class MoveBuffers(NamedTuple):
    """All arrays of a problem that compiled searches read and write."""

    template: TaskTemplate
    tasks: TaskGraph
    table: CollectiveTable
    times: TimeTable
    rates: AssignmentRates
    radix: Ints
    types: Ints
    roles: Codes
    """[units, factors]"""
    room: Workspace


def move_buffers(problem: StepModel) -> MoveBuffers:
    """The arrays of a problem; to be asked for again whenever a table was filled."""
    return MoveBuffers(
        template=problem.template,
        tasks=problem.tasks,
        table=problem.prices.table,
        times=problem.times.table,
        rates=problem.rates,
        radix=problem.places.radix,
        types=problem.times.type,
        roles=problem.roles,
        room=problem.room,
    )


class MoveUndo(NamedTuple):
    """What a change touched, and what it was before."""

    number: Ints
    """[5] of units, tasks, edges and bundles touched, and of changes so far."""
    unit: Indices
    roles: Codes
    task: Indices
    live: Flags
    duration: Ints
    places: Indices
    hold: Ints
    edge: Indices
    edge_live: Flags
    bundle: Indices
    stamp: Ints
    """[bundles] the change that last touched a bundle."""
    moved: Floats
    """[bundles, 2] what they moved before."""


UNITS, TASKS, EDGES, BUNDLES, CHANGES = range(5)


def undo(problem: StepModel, units: int) -> MoveUndo:
    """Room for changes of so many units at once."""
    n, e, b = len(problem.tasks.live), len(problem.tasks.succ), len(problem.bundles)
    kinds = problem.tasks.hold.shape[1]
    return MoveUndo(
        number=np.zeros(5, np.int64),
        unit=np.zeros(units, np.int32),
        roles=np.zeros((units, len(problem.factors)), np.int8),
        task=np.zeros(n, np.int32),
        live=np.zeros(n, np.bool_),
        duration=np.zeros(n, np.int64),
        places=np.zeros((n, 2), np.int32),
        hold=np.zeros((n, kinds), np.int64),
        edge=np.zeros(e, np.int32),
        edge_live=np.zeros(e, np.bool_),
        bundle=np.zeros(b, np.int32),
        stamp=np.zeros(b, np.int64),
        moved=np.zeros((b, 2)),
    )


@compiled
def _keep_task(tasks: TaskGraph, log: MoveUndo, task: int) -> None:
    if task != NONE:
        at = log.number[TASKS]
        log.task[at] = task
        log.live[at] = tasks.live[task]
        log.duration[at] = tasks.duration[task]
        copy_row(tasks.places, task, log.places, at)
        copy_row(tasks.hold, task, log.hold, at)
        log.number[TASKS] = at + 1


@compiled
def _keep_edge(tasks: TaskGraph, log: MoveUndo, edge: int) -> None:
    if edge != NONE:
        at = log.number[EDGES]
        log.edge[at] = edge
        log.edge_live[at] = tasks.edge_live[edge]
        log.number[EDGES] = at + 1


@compiled
def _keep_bundle(template: TaskTemplate, tasks: TaskGraph, log: MoveUndo, b: int) -> None:
    for m in range(template.carry.shape[1]):
        _keep_task(tasks, log, template.carry[b, m])
        _keep_task(tasks, log, template.carry_back[b, m])
        _keep_edge(tasks, log, template.carried_edge[b, m])
        _keep_edge(tasks, log, template.returned_edge[b, m])
        _keep_task(tasks, log, template.again[b, m])
        for way in range(2):
            _keep_edge(tasks, log, template.ahead_edge[way, b, m])
    _keep_task(tasks, log, template.update[b])
    _keep_task(tasks, log, template.regather[b])
    _keep_edge(tasks, log, template.regather_edge[b])
    for consumer in range(template.leg_start[b], template.leg_start[b + 1]):
        for m in range(template.leg_edge.shape[1]):
            _keep_edge(tasks, log, template.leg_edge[consumer, m])
            _keep_edge(tasks, log, template.leg_back_edge[consumer, m])
            _keep_edge(tasks, log, template.leg_again_edge[consumer, m])


@compiled
def apply(now: MoveBuffers, log: MoveUndo, units: Indices, roles: Codes, count: int) -> int:
    """Give some units new roles; FOUND, or what a table lacks, and then nothing is changed.

    Afterwards the log lists only tasks and edges that are not what they were.
    """
    # Records are taken out of their record once: each time costs more than laying a unit.
    template, tasks, table, times, rates = now.template, now.tasks, now.table, now.times, now.rates
    radix, types, laid, room = now.radix, now.types, now.roles, now.room
    _keep(template, tasks, laid, room.moved, log, units, count)
    for i in range(count):
        copy_row(roles, i, laid, units[i])
    status = FOUND
    for i in range(count):
        unit = units[i]
        status = assign_op_group(
            template, tasks, table, times, rates, radix, types[unit], unit, laid[unit], room
        )
        if status != FOUND:
            break
    if status == FOUND:
        for i in range(log.number[BUNDLES]):
            status = assign_edge(template, tasks, table, rates, radix, log.bundle[i], laid, room)
            if status != FOUND:
                break
    if status != FOUND:
        undo_move(tasks, laid, room.moved, log)
    else:
        _forget_unchanged(tasks, log)
    return status


@compiled
def _keep(
    template: TaskTemplate,
    tasks: TaskGraph,
    laid: Codes,
    moved: Floats,
    log: MoveUndo,
    units: Indices,
    count: int,
) -> None:
    """Write down everything that new roles of some units may touch."""
    number, stamp = log.number, log.stamp
    for kind in range(CHANGES):
        number[kind] = 0
    number[CHANGES] += 1
    number[UNITS] = count
    for i in range(count):
        unit = units[i]
        log.unit[i] = unit
        copy_row(laid, unit, log.roles, i)
        for m in range(template.forward.shape[1]):
            _keep_task(tasks, log, template.forward[unit, m])
            _keep_task(tasks, log, template.backward[unit, m])
        for at in range(template.unit_bundle_start[unit], template.unit_bundle_start[unit + 1]):
            b = template.unit_bundle[at]
            if stamp[b] != number[CHANGES]:
                stamp[b] = number[CHANGES]
                log.bundle[number[BUNDLES]] = b
                number[BUNDLES] += 1
                copy_row(moved, b, log.moved, b)
                _keep_bundle(template, tasks, log, b)


@compiled
def _forget_unchanged(tasks: TaskGraph, log: MoveUndo) -> None:
    """Keep only those tasks and edges in the log that are not what they were."""
    task, live, duration, places, hold = log.task, log.live, log.duration, log.places, log.hold
    live_now, duration_now = tasks.live, tasks.duration
    places_now, hold_now = tasks.places, tasks.hold
    kept = 0
    for i in range(log.number[TASKS]):
        t = task[i]
        changed = live_now[t] != live[i]
        if live_now[t] and not changed:
            changed = duration_now[t] != duration[i]
            for side in range(2):
                changed = changed or places_now[t, side] != places[i, side]
            for kind in range(hold.shape[1]):
                changed = changed or hold_now[t, kind] != hold[i, kind]
        if changed:
            task[kept], live[kept], duration[kept] = t, live[i], duration[i]
            copy_row(places, i, places, kept)
            copy_row(hold, i, hold, kept)
            kept += 1
    log.number[TASKS] = kept
    edge, edge_live, edge_now = log.edge, log.edge_live, tasks.edge_live
    kept = 0
    for i in range(log.number[EDGES]):
        if edge_now[edge[i]] != edge_live[i]:
            edge[kept], edge_live[kept] = edge[i], edge_live[i]
            kept += 1
    log.number[EDGES] = kept


@compiled
def undo_move(tasks: TaskGraph, laid: Codes, moved: Floats, log: MoveUndo) -> None:
    """Make everything what it was before the change."""
    number, task, live, duration = log.number, log.task, log.live, log.duration
    live_now, duration_now = tasks.live, tasks.duration
    places, hold, places_now, hold_now = log.places, log.hold, tasks.places, tasks.hold
    for i in range(number[UNITS]):
        copy_row(log.roles, i, laid, log.unit[i])
    for i in range(number[TASKS]):
        t = task[i]
        live_now[t], duration_now[t] = live[i], duration[i]
        copy_row(places, i, places_now, t)
        copy_row(hold, i, hold_now, t)
    edge, edge_live, edge_now = log.edge, log.edge_live, tasks.edge_live
    for i in range(number[EDGES]):
        edge_now[edge[i]] = edge_live[i]
    for i in range(number[BUNDLES]):
        copy_row(log.moved, log.bundle[i], moved, log.bundle[i])
