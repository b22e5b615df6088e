"""Operator times by sharding degrees. Enters: units, an operator pricer. Leaves: a table that
compiled code reads; it says so when a row is missing.

Units whose members run equal calls share rows. A row's key is the unit's type and, for each split,
the place of its degree among the divisors of the number of devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.cost.operator import OperatorPricer
from meshwright.sharding.allowed import ANYTHING, Allowed
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.tasks import Indices, Ints

MOST_SPLITS = 8
DEGREE_BITS = 6
"""Enough for numbers of devices with up to 64 divisors."""


class TimeTable(NamedTuple):
    """Rows found by open addressing."""

    place: Indices
    """[devices + 1] the place of a degree among the divisors."""
    cuttable: Indices
    """[types, splits, divisors] 1 where a split can and may be cut so."""
    key: Ints
    """[rows] -1 if empty; the number of rows is a power of 2."""
    forward: Ints
    backward: Ints


@compiled
def slot_of(table: TimeTable, key: int) -> int:
    """The row of a key, or the empty one in which it would be put."""
    mask = len(table.key) - 1
    at = ((key ^ (key >> 17)) * 0x9E3779B1) & mask
    while table.key[at] != -1 and table.key[at] != key:
        at = (at + 1) & mask
    return at


@compiled
def look_up_rows(table: TimeTable, keys: Ints, rows: Ints, start: int) -> int:
    """Find the rows of keys from one on; the first key without one, or how many keys there are."""
    for i in range(start, len(keys)):
        at = slot_of(table, keys[i])
        if table.key[at] != keys[i]:
            return i
        rows[i] = at
    return len(keys)


class OperatorDurations:
    """Nanoseconds of both passes of a unit, by how many ways each of its splits is cut.

    A pricer remembers them: other graphs, and other numbers of micro-batches, have the same units
    in the same pieces.
    """

    def __init__(self, unit: OpGroup, pricer: OperatorPricer) -> None:
        self._unit, self._pricer = unit, pricer
        self._known = pricer.sums.setdefault(runs(unit), {})

    def __call__(self, ways: tuple[int, ...]) -> tuple[int, int]:
        """Both passes of what a device runs."""
        durations = self._known.get(ways)
        if durations is None:
            durations = self._known[ways] = self._added(dict(enumerate(ways)))
        return durations

    def _added(self, ways: dict[int, int]) -> tuple[int, int]:
        forward = backward = 0.0
        for member in self._unit.members:
            price = self._pricer.price(member.piece(ways), member.wanted)
            forward += price.forward.seconds
            backward += price.backward.seconds
        return max(1, round(forward * NANO)), max(1, round(backward * NANO))


class OperatorTimes:
    """The table of one graph on one kind of device."""

    def __init__(
        self,
        units: tuple[OpGroup, ...],
        pricer: OperatorPricer,
        devices: int,
        micro_batches: int = 1,
        allowed: Allowed = ANYTHING,
    ) -> None:
        if len(divisors(devices)) > 1 << DEGREE_BITS:
            raise InputError(
                f"{devices} devices have more than {1 << DEGREE_BITS} divisors",
                "use another number of devices",
            )
        self._micro = micro_batches
        self._divisors = divisors(devices)
        numbers: dict[object, int] = {}
        self.type = np.array(
            [numbers.setdefault(_signature(unit, allowed), len(numbers)) for unit in units],
            np.int64,
        )
        self._units = {int(number): unit for number, unit in zip(self.type, units, strict=True)}
        self._durations = {
            number: OperatorDurations(unit, pricer) for number, unit in self._units.items()
        }
        place = np.zeros(devices + 1, np.int32)
        place[list(self._divisors)] = np.arange(len(self._divisors))
        cuttable = np.zeros((len(numbers), MOST_SPLITS, len(self._divisors)), np.int32)
        cuttable[:, :, 0] = 1  # What a unit does not have it cuts one way.
        for number, unit in self._units.items():
            for split in range(len(unit.splits)):
                wanted = allowed.degree(unit, unit.splits[split].name)
                micro = unit.micro_ways(split, self._micro)
                for at, degree in enumerate(self._divisors):
                    may = wanted in (None, degree)
                    cuttable[number, split, at] = may and unit.cuttable(split, degree * micro)
        self.table = TimeTable(place, cuttable, *_rows(1024))
        self._filled = 0

    def fill(self, key: int) -> None:
        """Price a unit cut in some way."""
        number, degrees = self._decoded(key)
        unit = self._units[number]
        ways = tuple(d * unit.micro_ways(s, self._micro) for s, d in enumerate(degrees))
        forward, backward = self._durations[number](ways)
        if 2 * self._filled > len(self.table.key):
            self._grow()
        self._insert(key, forward, backward)

    def _decoded(self, key: int) -> tuple[int, list[int]]:
        degrees = []
        for _ in range(MOST_SPLITS):
            degrees.append(self._divisors[key & ((1 << DEGREE_BITS) - 1)])
            key >>= DEGREE_BITS
        number = key
        return number, degrees[: len(self._units[number].splits)]

    def _insert(self, key: int, forward: int, backward: int) -> None:
        at = slot_of(self.table, key)
        self.table.key[at], self.table.forward[at], self.table.backward[at] = key, forward, backward
        self._filled += 1

    def _grow(self) -> None:
        old = self.table
        key, forward, backward = _rows(2 * len(old.key))
        self.table = old._replace(key=key, forward=forward, backward=backward)
        self._filled = 0
        for at in np.flatnonzero(old.key != -1):
            self._insert(int(old.key[at]), int(old.forward[at]), int(old.backward[at]))


def _rows(count: int) -> tuple[Ints, Ints, Ints]:
    return np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)


def runs(unit: OpGroup) -> object:
    """What a unit runs, whatever it is called."""
    return tuple((m.call, m.wanted, m.splits) for m in unit.members)


def _signature(unit: OpGroup, allowed: Allowed) -> object:
    return (
        runs(unit),
        tuple((split.name, allowed.degree(unit, split.name)) for split in unit.splits),
    )
