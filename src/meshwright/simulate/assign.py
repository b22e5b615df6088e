"""Task durations and resources of a layout, written into the task template. Enters: the role of
every factor for every unit. Leaves: which tasks and edges are live, how long tasks take, and which
resources they hold. Compiled.

A role is a number: that of a split, or a state (`sharding.states`) for replica and idle. Along a
factor a tensor is in the state that its unit's split gives it, or in that of the unit's role. A
bundle is carried once for each different need of its readers, one after the other in one task, and
so are gradients back. In layers that run again what was carried there is carried again, before the
gradients. Sharded parameters (ZeRO) are cut along a dim of their own wherever their gradients are
pending sums. What is not in the tables yet is noted in `Workspace.missing`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.sharding.reshard import Codes, resharding, resharding_by_parts
from meshwright.simulate.collective_table import CollectiveTable
from meshwright.simulate.edge_collectives import (
    FOUND,
    ILLEGAL,
    MOVED,
    NO_PRICE,
    NO_TIME,
    PENDING,
    TIME,
    Workspace,
    beside,
    charge,
    charge_bucket,
    charge_rounds,
    clear,
    put_together,
    reads_alike,
    states_differ,
    states_of,
    stored_states,
    widen,
)
from meshwright.simulate.operator_table import DEGREE_BITS, MOST_SPLITS, TimeTable, slot_of
from meshwright.simulate.resources import subcube
from meshwright.simulate.task_template import NONE, TaskTemplate
from meshwright.simulate.tasks import Flags, Ints, TaskGraph


class AssignmentRates(NamedTuple):
    """Numbers that do not depend on layouts."""

    update: float
    """Nanoseconds for each byte of parameters on a device."""
    launch: float
    """Nanoseconds for an update of nothing."""
    zero: int
    shards: Flags
    """[factors] whether ZeRO shards along a factor."""
    again: Flags
    """[units] whether a unit runs again in the backward pass."""
    early: bool
    """Whether what ZeRO 1 or 2 shards is gathered before it is read, not after its update."""
    buckets: bool
    """Whether parameters of a bundle that are summed or gathered alike are so together."""


@compiled
def key_of(number: int, roles: Codes, table: CollectiveTable, times: TimeTable) -> int:
    """The key of a unit of some type in the table of times, or -1 if it cannot be cut so."""
    key = number
    for split in range(MOST_SPLITS - 1, -1, -1):
        degree = 1
        for f in range(len(roles)):
            if roles[f] == split:
                degree *= table.sizes[f]
        place = times.place[degree]
        if times.cuttable[number, split, place] == 0:
            return -1
        key = (key << DEGREE_BITS) | place
    return key


@compiled
def assign_op_group(
    template: TaskTemplate,
    graph: TaskGraph,
    table: CollectiveTable,
    times: TimeTable,
    rates: AssignmentRates,
    radix: Ints,
    number: int,
    unit: int,
    roles: Codes,
    room: Workspace,
) -> int:
    """Write the compute tasks of a unit."""
    key = key_of(number, roles, table, times)
    if key < 0:
        return ILLEGAL
    row = slot_of(times, key)
    if times.key[row] == -1:
        room.missing[0], room.missing[1] = NO_TIME, key
        return NO_TIME
    place = subcube(roles, radix)
    forward, backward = times.forward[row], times.backward[row]
    if rates.again[unit]:
        backward += forward
    for m in range(template.forward.shape[1]):
        task = template.forward[unit, m]
        graph.live[task] = True
        graph.duration[task] = graph.hold[task, 0] = forward
        graph.places[task, 0] = place
        if template.flows[unit]:
            task = template.backward[unit, m]
            graph.live[task] = True
            graph.duration[task] = graph.hold[task, 0] = backward
            graph.places[task, 0] = place
    return FOUND


@compiled
def _write(
    graph: TaskGraph, task: int, time: float, one: int, other: int, busy: NDArray[np.float64]
) -> None:
    """Write a collective task; it is live if it takes any time."""
    graph.live[task] = time > 0
    if time <= 0:
        return
    hold = graph.hold
    duration = max(1, round(time))
    graph.duration[task] = duration
    graph.places[task, 0] = one
    graph.places[task, 1] = other if other != one else NONE
    for kind in range(len(busy)):
        hold[task, kind] = min(duration, int(np.ceil(busy[kind])))


@compiled
def assign_edge(
    template: TaskTemplate,
    graph: TaskGraph,
    table: CollectiveTable,
    rates: AssignmentRates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Workspace,
) -> int:
    """Write the tasks that carry a bundle, return its gradients and update its parameters."""
    status = _lay_way(template, graph, table, rates, radix, b, roles, room, True)
    if status == FOUND:
        status = _lay_way(template, graph, table, rates, radix, b, roles, room, False)
    if status == FOUND and template.parameters[b]:
        # A bucket may hold parameters of units that sit on different devices.
        first = template.source_start[b]
        for source in range(first, template.source_start[b + 1]):
            widen(room.seen, roles, template.source_maker[source], source > first)
        home = subcube(room.seen, radix)
        status = _lay_update(template, graph, table, rates, b, roles, room, home)
    return status


@compiled
def _lay_way(
    template: TaskTemplate,
    graph: TaskGraph,
    table: CollectiveTable,
    rates: AssignmentRates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Workspace,
    forward: bool,
) -> int:
    """Write the task that carries a bundle there, or its gradients back."""
    # Arrays are taken out of their records once: each time costs more than reading a number.
    produced, needed, cube = room.made, room.needed, room.seen
    scratch, operation, held = room.scratch, room.operation, room.held
    leg_source, leg_unit, leg_extra = template.leg_source, template.leg_unit, template.leg_extra
    leg_state = template.leg_there if forward else template.leg_back
    flows = template.leg_reads if forward else template.leg_flows
    edges = template.leg_edge if forward else template.leg_back_edge
    source_state = template.source_there if forward else template.source_back
    source_bytes, edge_live, sizes = template.source_bytes, graph.edge_live, table.sizes
    first, last, maker = template.leg_start[b], template.leg_start[b + 1], template.maker[b]
    kept, zero, source_maker = template.parameters[b], rates.zero, template.source_maker
    rerun = not forward and not kept and rates.again[maker] and template.flows[maker]
    rerun = rerun and graph.live[template.carry[b, 0]]
    sharded = kept and (zero == 3 or (rates.early and zero > 0) if forward else zero > 0)
    merged = rates.buckets and kept and (sharded or not forward)
    waiting, wide, cutting = 0, False, table.cutting
    clear(room)
    for consumer in range(first, last):
        waits = False
        if flows[consumer]:
            source, unit = leg_source[consumer], leg_unit[consumer]
            home, reading = (produced, needed) if forward else (needed, produced)
            if sharded:
                stored_states(template, b, source, roles, rates.shards, home)
            else:
                states_of(source_state, source, roles, source_maker[source], home)
            states_of(leg_state, consumer, roles, unit, reading)
            if states_differ(home, reading):
                count = resharding_by_parts(
                    produced, needed, sizes, cutting, source_bytes[source], scratch, operation, held
                )
                waits = count > 0
                if waits and not reads_alike(
                    first, consumer, leg_state, flows, leg_source, leg_unit, roles, reading
                ):
                    if merged and waiting + count <= PENDING:
                        waiting = put_together(room, waiting, count)
                    elif not charge(table, room, count):
                        return NO_PRICE
            if leg_extra[consumer]:
                count = beside(template, consumer, unit, roles, sizes, 0 if forward else 1, room)
                if not charge_rounds(table, room, count):
                    return NO_PRICE
                waits = waits or count > 0
            # What was carried there is carried once more; on the way back is where it counts.
            waits = waits or (rerun and edge_live[template.leg_edge[consumer, 0]])
            if waits:
                widen(cube, roles, unit, wide)
                wide = True
        for m in range(edges.shape[1]):
            edge_live[edges[consumer, m]] = waits
            again = template.leg_again_edge[consumer, m]
            if sharded and forward and again != NONE:
                edge_live[again] = waits and template.leg_flows[consumer]
    if not charge_bucket(table, room, waiting):
        return NO_PRICE
    if rerun and wide:
        _carry_again(template, graph, b, room)
    one = subcube(roles[maker], radix)
    other = subcube(cube, radix) if wide else one
    _write_way(template, graph, b, room, one, other, sharded, forward)
    return FOUND


@compiled
def _carry_again(template: TaskTemplate, graph: TaskGraph, b: int, room: Workspace) -> None:
    """Add what was carried there, for a layer that runs again."""
    carried = template.carry[b, 0]
    room.charged[TIME] += graph.duration[carried]
    room.charged[MOVED] += room.moved[b, 0] / template.carry.shape[1]
    for kind in range(len(room.busy)):
        room.busy[kind] += graph.hold[carried, kind]


@compiled
def _write_way(
    template: TaskTemplate,
    graph: TaskGraph,
    b: int,
    room: Workspace,
    one: int,
    other: int,
    sharded: bool,
    forward: bool,
) -> None:
    """Write what was charged into the tasks of a bundle."""
    time, moved = room.charged[TIME], room.charged[MOVED]
    tasks = template.carry if forward else template.carry_back
    ends = template.carried_edge if forward else template.returned_edge
    fetched = sharded and forward and template.again[b, 0] != NONE
    copies = 0
    for m in range(tasks.shape[1]):
        if tasks[b, m] == NONE:
            continue
        copies += 1
        _write(graph, tasks[b, m], time, one, other, room.busy)
        if ends[b, m] != NONE:
            graph.edge_live[ends[b, m]] = time > 0
        if fetched:
            _write(graph, template.again[b, m], time, one, other, room.busy)
            for way in range(2):
                if template.ahead_edge[way, b, m] != NONE:
                    graph.edge_live[template.ahead_edge[way, b, m]] = time > 0
    if fetched:
        moved *= 2
    room.moved[b, 0 if forward else 1] = moved * copies


@compiled
def _lay_update(
    template: TaskTemplate,
    graph: TaskGraph,
    table: CollectiveTable,
    rates: AssignmentRates,
    b: int,
    roles: Codes,
    room: Workspace,
    home: int,
) -> int:
    """Write the optimizer's task, and the one that gathers what it updated in shards."""
    produced, needed, sizes = room.made, room.needed, table.sizes
    bytes_here, trained, waiting = 0.0, False, 0
    clear(room)
    for source in range(template.source_start[b], template.source_start[b + 1]):
        if not template.trained[source]:
            continue
        trained = True
        stored_states(template, b, source, roles, rates.shards, produced)
        shard_bytes = template.source_bytes[source]
        for f in range(len(produced)):
            if produced[f] >= 0:
                shard_bytes /= sizes[f]
        bytes_here += shard_bytes
        if 0 < rates.zero < 3 and not rates.early:
            states_of(template.source_there, source, roles, template.source_maker[source], needed)
            count = resharding(
                produced, needed, sizes, template.source_bytes[source],
                room.scratch, room.operation, room.held,
            )  # fmt: skip
            if rates.buckets and waiting + count <= PENDING:
                waiting = put_together(room, waiting, count)
            elif not charge(table, room, count):
                return NO_PRICE
    if not charge_bucket(table, room, waiting):
        return NO_PRICE
    task = template.update[b]
    if trained:
        graph.live[task] = True
        graph.duration[task] = max(1, round(rates.launch + rates.update * bytes_here))
        graph.hold[task, 0] = graph.duration[task]
        graph.places[task, 0] = home
    else:
        for m in range(template.returned_edge.shape[1]):
            if template.returned_edge[b, m] != NONE:
                graph.edge_live[template.returned_edge[b, m]] = False
    _write(graph, template.regather[b], room.charged[TIME], home, home, room.busy)
    graph.edge_live[template.regather_edge[b]] = room.charged[TIME] > 0
    room.moved[b, 1] += room.charged[MOVED]
    return FOUND
