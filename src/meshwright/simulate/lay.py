"""Layouts written into a task graph. Enters: the role of every factor for every unit. Leaves: which
tasks and edges are live, how long tasks take, and which resources they hold. Compiled.

A role is a number: that of a split, or a state (`parallelize.states`) for replica and idle. Along a
factor a tensor is in the state that its unit's split gives it, or in that of the unit's role. A
bundle is carried once for each different need of its readers, one after the other in one task, and
so are gradients back. In layers that run again what was carried there is carried again, before the
gradients. Sharded parameters (ZeRO) are cut along a dim of their own wherever their gradients are
pending sums. What is not in the tables yet is noted in `Missing`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.foundation.compiled import compiled
from meshwright.parallelize.reshard import (
    ALL_REDUCE,
    MOST,
    SHIFT,
    Codes,
    resharding,
)
from meshwright.parallelize.states import PARTIAL, WHOLE
from meshwright.simulate.places import subcube
from meshwright.simulate.prices import Table, price
from meshwright.simulate.skeleton import NONE, Bytes8, Floats, Skeleton
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph
from meshwright.simulate.times import DEGREE_BITS, MOST_SPLITS, TimeTable, slot_of

SHARD: Final = 99
"""The number of the dim along which optimizer sharding cuts."""

PENDING: Final = 64
"""Different collectives in a bucket, at most; more run by themselves."""

FOUND: Final = 0
NO_TIME: Final = 1
NO_PRICE: Final = 2
ILLEGAL: Final = 3


class Work(NamedTuple):
    """Room for compiled code, and what it leaves besides the task graph."""

    made: Codes
    needed: Codes
    seen: Codes
    scratch: NDArray[np.int8]
    operation: Ints
    held: NDArray[np.float64]
    busy: NDArray[np.float64]
    missing: Ints
    """What a table lacks: NO_TIME and a key, or NO_PRICE, operation, members, every."""
    moved: NDArray[np.float64]
    """[bundles, 2] bytes that leave a device, there and back."""
    pending: Ints
    """[PENDING, 3] collectives of a bucket, as `operation`."""
    pending_held: NDArray[np.float64]


class Rates(NamedTuple):
    """Numbers that do not depend on layouts."""

    update: float
    """Nanoseconds for each byte of parameters on a device."""
    launch: float
    """Nanoseconds for an update of nothing."""
    zero: int
    again: Flags
    """[units] whether a unit runs again in the backward pass."""
    buckets: bool
    """Whether gradients of a bundle that are reduced alike are reduced together."""


def work(factors: int, kinds: int, bundles: int) -> Work:
    """Room for graphs of these sizes."""
    made, needed, seen, scratch = (np.zeros(factors, np.int8) for _ in range(4))
    return Work(
        made=made,
        needed=needed,
        seen=seen,
        scratch=scratch,
        operation=np.zeros((MOST, 3), np.int64),
        held=np.zeros(MOST),
        busy=np.zeros(kinds),
        missing=np.zeros(4, np.int64),
        moved=np.zeros((bundles, 2)),
        pending=np.zeros((PENDING, 3), np.int64),
        pending_held=np.zeros(PENDING),
    )


@compiled
def key_of(number: int, roles: Codes, table: Table, times: TimeTable) -> int:
    """The key of a unit of some type in the table of times, or -1 if it cannot be cut so."""
    key = number
    for split in range(MOST_SPLITS - 1, -1, -1):
        degree = 1
        for f in range(len(roles)):
            if roles[f] == split:
                degree *= table.sizes[f]
        place = times.place[degree]
        if degree > 1 and times.cuttable[number, split, place] == 0:
            return -1
        key = (key << DEGREE_BITS) | place
    return key


@compiled
def lay_unit(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    times: TimeTable,
    rates: Rates,
    radix: Ints,
    number: int,
    unit: int,
    roles: Codes,
    room: Work,
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
    there, back = times.there[row], times.back[row]
    if rates.again[unit]:
        back += there
    for m in range(bones.forward.shape[1]):
        task = bones.forward[unit, m]
        graph.live[task] = True
        graph.duration[task] = graph.hold[task, 0] = there
        graph.places[task, 0] = place
        if bones.flows[unit]:
            task = bones.backward[unit, m]
            graph.live[task] = True
            graph.duration[task] = graph.hold[task, 0] = back
            graph.places[task, 0] = place
    return FOUND


@compiled
def _priced(table: Table, room: Work, count: int) -> tuple[float, float]:
    """Nanoseconds and bytes moved of the collectives in `room`; negative if a price is missing."""
    operation, held, missing = room.operation, room.held, room.missing
    time, moved = 0.0, 0.0
    for i in range(count):
        kind, inside, every = operation[i, 0], operation[i, 1], operation[i, 2]
        own, bytes_moved = price(table, kind, inside, every, held[i], room.busy)
        if own < 0:
            missing[0], missing[1], missing[2], missing[3] = NO_PRICE, kind, inside, every
            return -1.0, 0.0
        time += own
        moved += bytes_moved
    return time, moved


@compiled
def _gather(room: Work, waiting: int, count: int) -> int:
    """Put collectives with those of a bucket that are alike; leaves how many are different."""
    operation, held = room.operation, room.held
    pending, pending_held = room.pending, room.pending_held
    for i in range(count):
        at = 0
        while at < waiting and not (
            pending[at, 0] == operation[i, 0]
            and pending[at, 1] == operation[i, 1]
            and pending[at, 2] == operation[i, 2]
        ):
            at += 1
        if at == waiting:
            for column in range(3):
                pending[at, column] = operation[i, column]
            pending_held[at] = 0.0
            waiting += 1
        pending_held[at] += held[i]
    return waiting


@compiled
def _beside(
    halo: Floats,
    statistics: Floats,
    there: Bytes8,
    leg: int,
    reader: int,
    roles: Codes,
    sizes: Ints,
    operation: Ints,
    held: Floats,
) -> int:
    """The halos and statistics of a reader, as collectives; how many."""
    count = 0
    for split in range(MOST_SPLITS):
        rows, numbers = halo[leg, split], statistics[leg, split]
        if rows == 0 and numbers == 0:
            continue
        inside, every, others = 0, 0, 1.0
        for f in range(roles.shape[1]):
            role = roles[reader, f]
            if role == split:
                inside |= 1 << f
            elif role >= WHOLE:
                every |= 1 << f
                if role >= 0 and there[leg, role] >= 0:
                    others *= sizes[f]
        if inside == 0 or count + 1 >= MOST:
            continue
        for kind, amount in ((SHIFT, rows / others), (ALL_REDUCE, numbers)):
            if amount > 0:
                operation[count, 0], operation[count, 1], operation[count, 2] = kind, inside, every
                held[count] = amount
                count += 1
    return count


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
def _home(bones: Skeleton, b: int, source: int, roles: Codes, zero: int, out: Codes) -> None:
    """How a source lies: as it is made, or, sharded, as the optimizer holds it."""
    there, back = bones.source_there, bones.leg_back
    maker = bones.source_maker[source]
    sharded = bones.parameters[b] and zero > 0 and bones.trained[source]
    leg = bones.leg_start[b]
    while bones.leg_source[leg] != source:
        leg += 1
    for f in range(roles.shape[1]):
        role = roles[maker, f]
        out[f] = there[source, role] if role >= 0 else role
        if sharded and role >= 0 and back[leg, role] == PARTIAL:
            out[f] = SHARD


@compiled
def _reads_alike(
    first: int,
    leg: int,
    state: Bytes8,
    flows: Flags,
    source: Indices,
    unit: Indices,
    roles: Codes,
    own: Codes,
) -> bool:
    """Whether an earlier reading of the same source is in the same states as this one."""
    for earlier in range(first, leg):
        if source[earlier] != source[leg] or not flows[earlier]:
            continue
        alike = True
        for f in range(roles.shape[1]):
            role = roles[unit[earlier], f]
            if (state[earlier, role] if role >= 0 else role) != own[f]:
                alike = False
                break
        if alike:
            return True
    return False


@compiled
def lay_bundle(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    rates: Rates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Work,
) -> int:
    """Write the tasks that carry a bundle, return its gradients and update its parameters."""
    status = _lay_way(bones, graph, table, rates, radix, b, roles, room, True)
    if status == FOUND:
        status = _lay_way(bones, graph, table, rates, radix, b, roles, room, False)
    if status == FOUND and bones.parameters[b]:
        home = subcube(roles[bones.maker[b]], radix)
        status = _lay_update(bones, graph, table, rates, b, roles, room, home)
    return status


@compiled
def _lay_way(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    rates: Rates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Work,
    there: bool,
) -> int:
    """Write the task that carries a bundle there, or its gradients back."""
    # Arrays are taken out of their records once: each time costs more than reading a number.
    made, needed, cube, busy = room.made, room.needed, room.seen, room.busy
    scratch, operation, held = room.scratch, room.operation, room.held
    leg_source, leg_unit, leg_extra = bones.leg_source, bones.leg_unit, bones.leg_extra
    leg_state = bones.leg_there if there else bones.leg_back
    flows = bones.leg_reads if there else bones.leg_flows
    edges = bones.leg_edge if there else bones.leg_back_edge
    source_state = bones.source_there if there else bones.source_back
    source_bytes, edge_live, sizes = bones.source_bytes, graph.edge_live, table.sizes
    first, last, maker = bones.leg_start[b], bones.leg_start[b + 1], bones.maker[b]
    kept, factors, zero = bones.parameters[b], roles.shape[1], rates.zero
    source_maker, waiting = bones.source_maker, 0
    merged = rates.buckets and kept and not there
    rerun = not there and not kept and rates.again[maker] and bones.flows[maker]
    rerun = rerun and graph.live[bones.carry[b, 0]]
    sharded = kept and (zero == 3 if there else zero > 0)
    for kind in range(len(busy)):
        busy[kind] = 0.0
    total, moved, wide = 0.0, 0.0, False
    for leg in range(first, last):
        waits = False
        if flows[leg]:
            source, unit = leg_source[leg], leg_unit[leg]
            home, reading = (made, needed) if there else (needed, made)
            if sharded:
                _home(bones, b, source, roles, zero, home)
            for f in range(factors):
                if not sharded:
                    role = roles[source_maker[source], f]
                    home[f] = source_state[source, role] if role >= 0 else role
                role = roles[unit, f]
                reading[f] = leg_state[leg, role] if role >= 0 else role
                waits = waits or home[f] != reading[f]
            if waits:
                count = resharding(
                    made, needed, sizes, source_bytes[source], scratch, operation, held
                )
                waits = count > 0
                if waits and not _reads_alike(
                    first, leg, leg_state, flows, leg_source, leg_unit, roles, reading
                ):
                    if merged and waiting + count <= PENDING:
                        waiting = _gather(room, waiting, count)
                        count = 0
                    time, bytes_moved = _priced(table, room, count)
                    if time < 0:
                        return NO_PRICE
                    total += time
                    moved += bytes_moved
            if leg_extra[leg]:
                count = _beside(
                    bones.leg_halo, bones.leg_statistics, bones.leg_there,
                    leg, unit, roles, sizes, operation, held,
                )  # fmt: skip
                if count > 0:
                    time, bytes_moved = _priced(table, room, count)
                    if time < 0:
                        return NO_PRICE
                    total += time
                    moved += bytes_moved
                    waits = True
            if rerun:
                # What was carried there is carried once more; on the way back is where it counts.
                waits = waits or edge_live[bones.leg_edge[leg, 0]]
            if waits:
                for f in range(factors):
                    role = roles[unit, f]
                    if not wide:
                        cube[f] = role
                    elif cube[f] != role and (cube[f] < PARTIAL or role < PARTIAL):
                        cube[f] = WHOLE
                wide = True
        for m in range(edges.shape[1]):
            edge_live[edges[leg, m]] = waits
            if kept and there:
                edge_live[bones.leg_again_edge[leg, m]] = waits and sharded and bones.leg_flows[leg]
    for i in range(waiting):
        for column in range(3):
            operation[0, column] = room.pending[i, column]
        held[0] = room.pending_held[i]
        time, bytes_moved = _priced(table, room, 1)
        if time < 0:
            return NO_PRICE
        total += time
        moved += bytes_moved
    if rerun and wide:
        carried = bones.carry[b, 0]
        total += graph.duration[carried]
        moved += room.moved[b, 0] / bones.carry.shape[1]
        for kind in range(len(busy)):
            busy[kind] += graph.hold[carried, kind]
    one = subcube(roles[maker], radix)
    other = subcube(cube, radix) if wide else one
    tasks = bones.carry if there else bones.back
    ends = bones.carried_edge if there else bones.returned_edge
    copies = 1 if kept else tasks.shape[1]
    for m in range(copies):
        _write(graph, tasks[b, m], total, one, other, busy)
        if ends[b, m] != NONE:
            edge_live[ends[b, m]] = total > 0
    if kept and there:
        _write(graph, bones.again[b], total if sharded else 0.0, one, other, busy)
        moved *= 1 + sharded
    room.moved[b, 0 if there else 1] = moved * copies
    return FOUND


@compiled
def _lay_update(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    rates: Rates,
    b: int,
    roles: Codes,
    room: Work,
    home: int,
) -> int:
    """Write the optimizer's task, and the one that gathers what it updated in shards."""
    made, needed, sizes = room.made, room.needed, table.sizes
    bytes_here, gather, moved, trained = 0.0, 0.0, 0.0, False
    for kind in range(len(room.busy)):
        room.busy[kind] = 0.0
    for source in range(bones.source_start[b], bones.source_start[b + 1]):
        if not bones.trained[source]:
            continue
        trained = True
        _home(bones, b, source, roles, rates.zero, made)
        own = bones.source_bytes[source]
        for f in range(len(made)):
            if made[f] >= 0:
                own /= sizes[f]
        bytes_here += own
        if 0 < rates.zero < 3:
            _home(bones, b, source, roles, 0, needed)
            count = resharding(
                made, needed, sizes, bones.source_bytes[source],
                room.scratch, room.operation, room.held,
            )  # fmt: skip
            time, bytes_moved = _priced(table, room, count)
            if time < 0:
                return NO_PRICE
            gather += time
            moved += bytes_moved
    task = bones.update[b]
    if trained:
        graph.live[task] = True
        graph.duration[task] = max(1, round(rates.launch + rates.update * bytes_here))
        graph.hold[task, 0] = graph.duration[task]
        graph.places[task, 0] = home
    else:
        graph.edge_live[bones.returned_edge[b, 0]] = False
    _write(graph, bones.regather[b], gather, home, home, room.busy)
    graph.edge_live[bones.regather_edge[b]] = gather > 0
    room.moved[b, 1] += moved
    return FOUND
