"""The collectives of one edge: forward resharding and its backward. Compiled.

Enters: states, as numbers. Leaves: collectives in a `Workspace`, priced and added up. Which
tensors are carried, and when, is the business of `assign`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.sharding.reshard import ALL_REDUCE, ALL_TO_ALL, MOST, SHIFT, Codes
from meshwright.sharding.states import PARTIAL, WHOLE
from meshwright.simulate.collective_table import CollectiveTable, price
from meshwright.simulate.operator_table import MOST_SPLITS
from meshwright.simulate.task_template import Bytes8, TaskTemplate
from meshwright.simulate.tasks import Flags, Indices, Ints

SHARD: Final = 99
"""The number of the dim along which optimizer sharding cuts."""

PENDING: Final = 64
"""Different collectives in a bucket, at most; more run by themselves."""

FOUND: Final = 0
NO_TIME: Final = 1
NO_PRICE: Final = 2
ILLEGAL: Final = 3

TIME, MOVED = range(2)
"""In `Workspace.charged`."""


class Workspace(NamedTuple):
    """Room for compiled code, and what it leaves besides the task graph."""

    made: Codes
    needed: Codes
    seen: Codes
    scratch: NDArray[np.int8]
    operation: Ints
    held: NDArray[np.float64]
    rounds: Ints
    """[MOST] how often what parts of a unit exchange is exchanged."""
    busy: NDArray[np.float64]
    missing: Ints
    """What a table lacks: NO_TIME and a key, or NO_PRICE, operation, members, every."""
    charged: NDArray[np.float64]
    """[2] nanoseconds, and bytes that leave a device, of what was priced last."""
    moved: NDArray[np.float64]
    """[bundles, 2] bytes that leave a device, there and back."""
    pending: Ints
    """[PENDING, 3] collectives of a bucket, as `operation`."""
    pending_held: NDArray[np.float64]


def work(factors: int, kinds: int, bundles: int) -> Workspace:
    """Room for graphs of these sizes."""
    produced, needed, seen, scratch = (np.zeros(factors, np.int8) for _ in range(4))
    return Workspace(
        made=produced,
        needed=needed,
        seen=seen,
        scratch=scratch,
        operation=np.zeros((MOST, 3), np.int64),
        held=np.zeros(MOST),
        rounds=np.zeros(MOST, np.int64),
        busy=np.zeros(kinds),
        missing=np.zeros(4, np.int64),
        charged=np.zeros(2),
        moved=np.zeros((bundles, 2)),
        pending=np.zeros((PENDING, 3), np.int64),
        pending_held=np.zeros(PENDING),
    )


@compiled
def charge(table: CollectiveTable, room: Workspace, count: int) -> bool:
    """Price the collectives in `room` and add them up; False if a price is missing."""
    for i in range(count):  # noqa: SIM110 - compiled, a generator would be slow
        if not _charge_one(table, room, i):
            return False
    return True


@compiled
def charge_rounds(table: CollectiveTable, room: Workspace, count: int) -> bool:
    """The same of what parts of a unit exchange, each as often as they do."""
    for i in range(count):
        for _ in range(room.rounds[i]):
            if not _charge_one(table, room, i):
                return False
    return True


@compiled
def _charge_one(table: CollectiveTable, room: Workspace, i: int) -> bool:
    operation, missing, charged = room.operation, room.missing, room.charged
    kind, inside, every = operation[i, 0], operation[i, 1], operation[i, 2]
    cost, bytes_moved = price(table, kind, inside, every, room.held[i], room.busy)
    if cost < 0:
        missing[0], missing[1], missing[2], missing[3] = NO_PRICE, kind, inside, every
        return False
    charged[TIME] += cost
    charged[MOVED] += bytes_moved
    return True


@compiled
def charge_bucket(table: CollectiveTable, room: Workspace, count: int) -> bool:
    """Price the collectives of a bucket and add them up; False if a price is missing."""
    for i in range(count):
        for column in range(3):
            room.operation[0, column] = room.pending[i, column]
        room.held[0] = room.pending_held[i]
        if not charge(table, room, 1):
            return False
    return True


@compiled
def clear(room: Workspace) -> None:
    """Begin to add up anew."""
    room.charged[TIME] = room.charged[MOVED] = 0.0
    for kind in range(len(room.busy)):
        room.busy[kind] = 0.0


@compiled
def widen(cube: Codes, roles: Codes, unit: int, begun: bool) -> None:
    """Make a subcube, given as roles, hold another unit's."""
    for f in range(len(cube)):
        role = roles[unit, f]
        if not begun:
            cube[f] = role
        elif cube[f] != role and (cube[f] < PARTIAL or role < PARTIAL):
            cube[f] = WHOLE


@compiled
def put_together(room: Workspace, waiting: int, count: int) -> int:
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
def beside(
    template: TaskTemplate,
    consumer: int,
    reader: int,
    roles: Codes,
    sizes: Ints,
    way: int,
    room: Workspace,
) -> int:
    """The halos, statistics and exchanges of a reader, there (0) or back (1), as collectives; how
    many. An exchange is two AllToAlls: to where experts are and back.
    """
    halo, statistics, states = template.leg_halo, template.leg_statistics, template.leg_there
    exchanged = template.leg_exchanged
    operation, held, rounds = room.operation, room.held, room.rounds
    count = 0
    for split in range(MOST_SPLITS):
        rows, numbers, tokens = (
            halo[consumer, split],
            statistics[consumer, split],
            exchanged[consumer, split],
        )
        if rows == 0 and numbers == 0 and tokens == 0:
            continue
        inside, every, others, shares, ways = 0, 0, 1.0, 1.0, 1.0
        for f in range(roles.shape[1]):
            role = roles[reader, f]
            if role == split:
                inside |= 1 << f
                ways *= sizes[f]
            elif role >= WHOLE:
                every |= 1 << f
                if role >= 0 and states[consumer, role] >= 0:
                    others *= sizes[f]
                if role >= 0 and template.leg_cut_by[consumer, split] >> role & 1:
                    shares *= sizes[f]
        if inside == 0 or count + 2 >= MOST:
            continue
        often = template.leg_rounds[consumer, split, way]
        for kind, amount, times in (
            (SHIFT, rows / others, 1),
            (ALL_REDUCE, numbers / shares, often),
            (ALL_TO_ALL, tokens / 2 / others / ways, 2),
        ):
            if amount > 0 and times > 0:
                operation[count, 0], operation[count, 1], operation[count, 2] = kind, inside, every
                held[count], rounds[count] = amount, times
                count += 1
    return count


@compiled
def states_of(by_split: Bytes8, row: int, roles: Codes, unit: int, out: Codes) -> None:
    """The states of a tensor along every factor, given those under each split of its unit."""
    for f in range(roles.shape[1]):
        role = roles[unit, f]
        out[f] = by_split[row, role] if role >= 0 else role


@compiled
def states_differ(one: Codes, other: Codes) -> bool:
    """Whether two rows of states are not the same."""
    for f in range(len(one)):  # noqa: SIM110 - compiled, a generator would be slow
        if one[f] != other[f]:
            return True
    return False


@compiled
def stored_states(
    template: TaskTemplate, b: int, source: int, roles: Codes, shards: Flags, out: Codes
) -> None:
    """How a source lies: as it is made, or, sharded, as the optimizer holds it."""
    maker, gradient_states = template.source_maker[source], template.leg_back
    states_of(template.source_there, source, roles, maker, out)
    if not (template.parameters[b] and template.trained[source]):
        return
    consumer = template.leg_start[b]
    while template.leg_source[consumer] != source:
        consumer += 1
    for f in range(roles.shape[1]):
        role = roles[maker, f]
        if shards[f] and role >= 0 and gradient_states[consumer, role] == PARTIAL:
            out[f] = SHARD


@compiled
def reads_alike(
    first: int,
    consumer: int,
    state: Bytes8,
    flows: Flags,
    source: Indices,
    unit: Indices,
    roles: Codes,
    reading: Codes,
) -> bool:
    """Whether an earlier reading of the same source is in the same states as this one."""
    for earlier in range(first, consumer):
        if source[earlier] != source[consumer] or not flows[earlier]:
            continue
        alike = True
        for f in range(roles.shape[1]):
            role = roles[unit[earlier], f]
            if (state[earlier, role] if role >= 0 else role) != reading[f]:
                alike = False
                break
        if alike:
            return True
    return False
