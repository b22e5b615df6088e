"""Layouts written into a task graph. Enters: the role of every factor for every unit. Leaves: which
tasks and edges are live, how long tasks take, and which resources they hold. Compiled.

A role is a number: that of a split, or a state (`parallelize.states`) for replica and idle. Along a
factor a tensor is in the state that its unit's split gives it, or in that of the unit's role. A
bundle is carried once for each different need of its readers, one after the other in one task, and
so are gradients back. Sharded parameters (ZeRO) are cut along a dim of their own wherever their
gradients are pending sums. What is not in the tables yet is noted in `Missing`.
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
from meshwright.simulate.skeleton import NONE, Skeleton
from meshwright.simulate.tasks import Flags, Ints, TaskGraph
from meshwright.simulate.times import DEGREE_BITS, MOST_SPLITS, TimeTable, slot_of

SHARD: Final = 99
"""The number of the dim along which optimizer sharding cuts."""

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


class Rates(NamedTuple):
    """Numbers that do not depend on layouts."""

    update: float
    """Nanoseconds for each byte of parameters on a device."""
    launch: float
    """Nanoseconds for an update of nothing."""
    zero: int
    again: Flags
    """[units] whether a unit runs again in the backward pass."""


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
        task = bones.backward[unit, m]
        graph.live[task] = bones.flows[unit]
        graph.duration[task] = graph.hold[task, 0] = back
        graph.places[task, 0] = place
    return FOUND


@compiled
def states(roles: Codes, by_split: NDArray[np.int8], out: Codes) -> None:
    """The state of a tensor along every factor."""
    for f in range(len(roles)):
        out[f] = by_split[roles[f]] if roles[f] >= 0 else roles[f]


@compiled
def _same(one: Codes, other: Codes) -> bool:
    for f in range(len(one)):
        if one[f] != other[f]:
            return False
    return True


@compiled
def _priced(table: Table, room: Work, count: int) -> tuple[float, float]:
    """Nanoseconds and bytes moved of the collectives in `room`; negative if a price is missing."""
    time, moved = 0.0, 0.0
    for i in range(count):
        operation, inside, every = room.operation[i]
        own, bytes_moved = price(table, operation, inside, every, room.held[i], room.busy)
        if own < 0:
            room.missing[0], room.missing[1] = NO_PRICE, operation
            room.missing[2], room.missing[3] = inside, every
            return -1.0, 0.0
        time += own
        moved += bytes_moved
    return time, moved


@compiled
def _convert(table: Table, room: Work, total: float) -> tuple[float, float]:
    """Price the change from `room.made` to `room.needed`."""
    count = resharding(
        room.made, room.needed, table.sizes, total, room.scratch, room.operation, room.held
    )
    return _priced(table, room, count)


@compiled
def _beside(table: Table, room: Work, bones: Skeleton, leg: int, roles: Codes, total: float) -> int:
    """The halos and statistics of a reader, as collectives in `room`; how many."""
    count = 0
    for split in range(MOST_SPLITS):
        halo, numbers = bones.leg_halo[leg, split], bones.leg_statistics[leg, split]
        if halo == 0 and numbers == 0:
            continue
        inside, every, others = 0, 0, 1.0
        for f in range(len(roles)):
            if roles[f] == split:
                inside |= 1 << f
            elif roles[f] >= WHOLE:
                every |= 1 << f
                if roles[f] >= 0 and bones.leg_there[leg, roles[f]] >= 0:
                    others *= table.sizes[f]
        if inside == 0:
            continue
        if halo > 0 and count < MOST:
            room.operation[count] = (SHIFT, inside, every)
            room.held[count] = halo / others
            count += 1
        if numbers > 0 and count < MOST:
            room.operation[count] = (ALL_REDUCE, inside, every)
            room.held[count] = numbers
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
    duration = max(1, round(time))
    graph.duration[task] = duration
    graph.places[task, 0] = one
    graph.places[task, 1] = other if other != one else NONE
    for kind in range(len(busy)):
        graph.hold[task, kind] = min(duration, int(np.ceil(busy[kind])))


@compiled
def _home(bones: Skeleton, b: int, source: int, roles: Codes, rates: Rates, room: Work) -> None:
    """Put into `room.made` how a source lies: as made, or, sharded, as the optimizer holds it."""
    maker = roles[bones.maker[b]]
    states(maker, bones.source_there[source], room.made)
    if bones.parameters[b] and rates.zero > 0 and bones.trained[source]:
        leg = bones.leg_start[b]
        while bones.leg_source[leg] != source:
            leg += 1
        for f in range(len(room.made)):
            role = maker[f]
            if role >= 0 and bones.leg_back[leg, role] == PARTIAL:
                room.made[f] = SHARD


@compiled
def _union(cube: Codes, roles: Codes) -> None:
    """Widen a subcube, given as roles, so that it holds another."""
    for f in range(len(cube)):
        if cube[f] != roles[f] and (cube[f] < PARTIAL or roles[f] < PARTIAL):
            cube[f] = WHOLE


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
    kept = bones.parameters[b]
    maker = roles[bones.maker[b]]
    home = subcube(maker, radix)
    sharded = kept and rates.zero > 0
    status = _lay_there(bones, graph, table, rates, radix, b, roles, room, home, maker)
    if status == FOUND:
        status = _lay_back(bones, graph, table, rates, radix, b, roles, room, home, maker)
    if status == FOUND and kept:
        status = _lay_update(bones, graph, table, rates, b, roles, room, home, sharded)
    return status


@compiled
def _lay_there(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    rates: Rates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Work,
    home: int,
    maker: Codes,
) -> int:
    first, last = bones.leg_start[b], bones.leg_start[b + 1]
    fetched = bones.parameters[b] and rates.zero == 3
    room.busy[:] = 0
    total, moved, cube_set = 0.0, 0.0, False
    cube = room.seen
    for leg in range(first, last):
        source = bones.leg_source[leg]
        reader = roles[bones.leg_unit[leg]]
        if fetched:
            _home(bones, b, source, roles, rates, room)
        else:
            states(maker, bones.source_there[source], room.made)
        states(reader, bones.leg_there[leg], room.needed)
        changes = (
            not _same(room.made, room.needed)
            and resharding(
                room.made, room.needed, table.sizes, 1.0, room.scratch, room.operation, room.held
            )
            > 0
        )
        if changes and not _repeated(bones, roles, first, leg, True, room):
            time, bytes_moved = _convert(table, room, bones.source_bytes[source])
            if time < 0:
                return NO_PRICE
            total += time
            moved += bytes_moved
        count = _beside(table, room, bones, leg, reader, bones.source_bytes[source])
        if count > 0:
            time, bytes_moved = _priced(table, room, count)
            if time < 0:
                return NO_PRICE
            total += time
            moved += bytes_moved
        waits = changes or count > 0
        if waits:
            if cube_set:
                _union(cube, reader)
            else:
                cube[:] = reader
                cube_set = True
        for m in range(bones.forward.shape[1]):
            graph.edge_live[bones.leg_edge[leg, m]] = waits
            if bones.leg_again_edge[leg, m] != NONE:
                graph.edge_live[bones.leg_again_edge[leg, m]] = (
                    waits and fetched and bones.leg_flows[leg]
                )
    other = subcube(cube, radix) if cube_set else home
    copies = 1 if bones.parameters[b] else bones.carry.shape[1]
    for m in range(copies):
        task = bones.carry[b, m]
        _write(graph, task, total, home, other, room.busy)
        if bones.carried_edge[b, m] != NONE:
            graph.edge_live[bones.carried_edge[b, m]] = graph.live[task]
    if bones.parameters[b]:
        _write(graph, bones.again[b], total if fetched else 0.0, home, other, room.busy)
        moved *= 1 + fetched
    room.moved[b, 0] = moved * copies
    return FOUND


@compiled
def _repeated(bones: Skeleton, roles: Codes, first: int, leg: int, there: bool, room: Work) -> bool:
    """Whether an earlier reader of the same source is in the same state as this one's."""
    by_split = bones.leg_there if there else bones.leg_back
    own = room.needed if there else room.made
    for earlier in range(first, leg):
        if bones.leg_source[earlier] != bones.leg_source[leg]:
            continue
        if not there and not bones.leg_flows[earlier]:
            continue
        reader = roles[bones.leg_unit[earlier]]
        alike = True
        for f in range(len(reader)):
            state = by_split[earlier, reader[f]] if reader[f] >= 0 else reader[f]
            if state != own[f]:
                alike = False
                break
        if alike:
            return True
    return False


@compiled
def _lay_back(
    bones: Skeleton,
    graph: TaskGraph,
    table: Table,
    rates: Rates,
    radix: Ints,
    b: int,
    roles: Codes,
    room: Work,
    home: int,
    maker: Codes,
) -> int:
    first, last = bones.leg_start[b], bones.leg_start[b + 1]
    kept = bones.parameters[b]
    room.busy[:] = 0
    total, moved, cube_set = 0.0, 0.0, False
    cube = room.seen
    for leg in range(first, last):
        waits = False
        if bones.leg_flows[leg]:
            source = bones.leg_source[leg]
            reader = roles[bones.leg_unit[leg]]
            if kept and rates.zero > 0:
                _home(bones, b, source, roles, rates, room)
                room.needed[:] = room.made
            else:
                states(maker, bones.source_back[source], room.needed)
            states(reader, bones.leg_back[leg], room.made)
            waits = (
                not _same(room.made, room.needed)
                and resharding(
                    room.made,
                    room.needed,
                    table.sizes,
                    1.0,
                    room.scratch,
                    room.operation,
                    room.held,
                )
                > 0
            )
            if waits and not _repeated(bones, roles, first, leg, False, room):
                time, bytes_moved = _convert(table, room, bones.source_bytes[source])
                if time < 0:
                    return NO_PRICE
                total += time
                moved += bytes_moved
            count = _beside(table, room, bones, leg, reader, bones.source_bytes[source])
            if count > 0:
                time, bytes_moved = _priced(table, room, count)
                if time < 0:
                    return NO_PRICE
                total += time
                moved += bytes_moved
                waits = True
            if waits:
                if cube_set:
                    _union(cube, reader)
                else:
                    cube[:] = reader
                    cube_set = True
        for m in range(bones.forward.shape[1]):
            graph.edge_live[bones.leg_back_edge[leg, m]] = waits
    other = subcube(cube, radix) if cube_set else home
    copies = 1 if kept else bones.back.shape[1]
    for m in range(copies):
        task = bones.back[b, m]
        _write(graph, task, total, home, other, room.busy)
        graph.edge_live[bones.returned_edge[b, m]] = graph.live[task]
    room.moved[b, 1] = moved * copies
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
    sharded: bool,
) -> int:
    bytes_here, gather, moved = 0.0, 0.0, 0.0
    trained = False
    room.busy[:] = 0
    for source in range(bones.source_start[b], bones.source_start[b + 1]):
        if not bones.trained[source]:
            continue
        trained = True
        _home(bones, b, source, roles, rates, room)
        own = bones.source_bytes[source]
        for f in range(len(room.made)):
            if room.made[f] >= 0:
                own /= table.sizes[f]
        bytes_here += own
        if sharded and rates.zero < 3:
            states(roles[bones.maker[b]], bones.source_there[source], room.needed)
            time, bytes_moved = _convert(table, room, bones.source_bytes[source])
            if time < 0:
                return NO_PRICE
            gather += time
            moved += bytes_moved
    task = bones.update[b]
    graph.live[task] = trained
    graph.duration[task] = graph.hold[task, 0] = max(
        1, round(rates.launch + rates.update * bytes_here)
    )
    graph.places[task, 0] = home
    if not trained:
        for m in range(bones.back.shape[1]):
            if bones.returned_edge[b, m] != NONE:
                graph.edge_live[bones.returned_edge[b, m]] = False
    _write(graph, bones.regather[b], gather, home, home, room.busy)
    graph.edge_live[bones.regather_edge[b]] = graph.live[bones.regather[b]]
    room.moved[b, 1] += moved
    return FOUND
