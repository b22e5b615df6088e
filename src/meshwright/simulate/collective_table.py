"""Collective cost table: alpha-beta lines, each reduction at its best program. Enters: a cluster's
pricer, groups as bits of factors. Leaves: lines in the bytes held, as arrays that compiled code
reads.

How a collective lies on the machine is told by how many positions of each level are members of a
group, and along how many groups run side by side; where the wiring tells positions apart, by the
factors themselves. For each operation and each such pattern the table has the ways to carry it
out, each a line in the bytes held (fixed + slope · bytes, with the time that each link is busy):
one collective by each algorithm of the library, several one after the other along some of the
factors each, and, to sum up on everybody, the reduction programs that are cheapest at some size.
The cheapest way at the bytes at hand is taken. Rows are filled when first needed; compiled code
that meets an empty one says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.base.integers import divisors, set_bits
from meshwright.cluster.cluster import Cluster, Link
from meshwright.collectives.factors import summed_hierarchy
from meshwright.collectives.predict import cheapest
from meshwright.collectives.synthesize import MoveSpace
from meshwright.collectives.verify import verified
from meshwright.cost.alpha_beta import CostLine, Pricer
from meshwright.cost.backend import NCCL
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.overlap import exposed_share
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import NAMES
from meshwright.simulate.collective_implementations import (
    CollectiveWay,
    bytes_moved,
    chained,
    scaled,
    way_of_program,
)

NANO = 1e9
COMPUTE = 0
"""The kind of resource that is a device's compute stream; links follow."""

PAYLOADS = tuple(float(1 << bits) for bits in range(12, 36, 4))
"""Sizes at which the cheapest reduction program is looked for; in between they take turns."""

OPERATIONS: tuple[Operation, ...] = tuple(
    next(op for op in (*Collective, *Movement) if op.value == name) for name in NAMES
)
"""By their numbers in `sharding.reshard`."""


class CollectiveTable(NamedTuple):
    """What compiled code reads of the prices; times in nanoseconds."""

    sizes: NDArray[np.int64]
    """[factors]"""
    level: NDArray[np.int64]
    """[factors]"""
    cutting: NDArray[np.bool_]
    """[factors] whether copies along a factor send a part each (`Software.scatters`)."""
    divisor: NDArray[np.int64]
    """[levels, largest cardinality + 1] the place of a number among the divisors of a level."""
    radix: NDArray[np.int64]
    """[levels] how many divisors a level has; 0 if its positions are told apart."""
    row: NDArray[np.int64]
    """[operations, patterns] where the ways begin, -1 if not filled."""
    ways: NDArray[np.int64]
    """[operations, patterns] how many ways there are."""
    fixed: NDArray[np.float64]
    """[ways]"""
    slope: NDArray[np.float64]
    """[ways]"""
    busy: NDArray[np.float64]
    """[ways, kinds] for each byte; of compute streams, what talking takes of them."""
    lost: NDArray[np.float64]
    """[ways] what it takes of compute streams besides."""
    moved: NDArray[np.float64]
    """[ways]"""


@compiled
def pattern_number(table: CollectiveTable, inside: int, every: int) -> int:
    """The number of a pattern, given its factors as bits."""
    number = 0
    f = 0
    for level in range(len(table.radix)):
        members, beside, digits = 1, 1, 0
        while f < len(table.sizes) and table.level[f] == level:
            if inside >> f & 1:
                members *= table.sizes[f]
                digits = digits * 3 + 1
            elif every >> f & 1:
                beside *= table.sizes[f]
                digits = digits * 3 + 2
            else:
                digits *= 3
            f += 1
        if table.radix[level]:
            number *= table.radix[level] * table.radix[level]
            number += (
                table.divisor[level, members] * table.radix[level] + table.divisor[level, beside]
            )
        else:
            number = number * table.divisor[level, 0] + digits
    return number


@compiled
def price(
    table: CollectiveTable,
    operation: int,
    inside: int,
    every: int,
    held: float,
    busy: NDArray[np.float64],
) -> tuple[float, float]:
    """Nanoseconds and bytes moved of one collective; adds to `busy`, by kind.

    Negative if the row is not filled.
    """
    number = pattern_number(table, inside, every)
    first = table.row[operation, number]
    if first < 0:
        return -1.0, 0.0
    best, least = first, np.inf
    for way in range(first, first + table.ways[operation, number]):
        time = table.fixed[way] + table.slope[way] * held
        if time < least:
            best, least = way, time
    busy[COMPUTE] += table.lost[best]
    for kind in range(len(busy)):
        busy[kind] += table.busy[best, kind] * held
    return least, table.moved[best] * held


class CollectivePrices:
    """The table, and how its rows are filled."""

    def __init__(self, pricer: Pricer, *, programs: bool = True) -> None:
        self.pricer, self.programs = pricer, programs
        cluster = pricer.cluster
        self.factors = factors(cluster)
        self.kinds = (
            "compute",
            *(f"{level.name}/{link.name}" for level in cluster.levels for link in level.links),
        )
        self._kind = {
            (depth, link.name): number
            for number, (depth, link) in enumerate(_links(cluster), start=1)
        }
        self._ways: list[CollectiveWay] = []
        self.table = self._empty()
        self.shared: dict[object, Any] = {}
        """What rooms above keep of what follows from these prices, by keys of theirs."""

    def fill(self, operation: int, inside: int, every: int) -> None:
        """Price an operation on a pattern, so that the table has its row."""
        ways = tuple(self._find(operation, inside, every))
        number = int(pattern_number(self.table, inside, every))
        self.table.row[operation, number] = len(self._ways)
        self.table.ways[operation, number] = len(ways)
        self._ways += ways
        if len(self._ways) > len(self.table.fixed):
            self._widen()
        else:
            self._write(range(len(self._ways) - len(ways), len(self._ways)))

    def way(self, operation: int, inside: int, every: int, held: float) -> CollectiveWay:
        """The cheapest way to carry out an operation."""
        ways = self.ways(operation, inside, every)
        return min(ways, key=lambda way: way.fixed + way.slope * held)

    def ways(self, operation: int, inside: int, every: int) -> Sequence[CollectiveWay]:
        """All ways to carry out an operation that are known."""
        number = int(pattern_number(self.table, inside, every))
        if self.table.row[operation, number] < 0:
            self.fill(operation, inside, every)
        first = int(self.table.row[operation, number])
        return self._ways[first : first + int(self.table.ways[operation, number])]

    def without(
        self, operation: int, inside: int, every: int, way: CollectiveWay
    ) -> CollectivePrices:
        """The same prices but for one of several ways to carry out an operation."""
        ways = [candidate for candidate in self.ways(operation, inside, every) if candidate != way]
        assert ways, "some way must be left"
        other = copy(self)
        other._ways, other.shared = [*self._ways, *ways], {}
        other.table = self._empty()
        other.table.row[:], other.table.ways[:] = self.table.row, self.table.ways
        number = int(pattern_number(self.table, inside, every))
        other.table.row[operation, number] = len(self._ways)
        other.table.ways[operation, number] = len(ways)
        other._widen()
        return other

    def _widen(self) -> None:
        """Make room in the table for twice as many ways, and write those that there are."""
        room = 2 * len(self._ways)
        busy = np.zeros((room, len(self.kinds)))
        fixed, slope, lost, moved = (np.zeros(room) for _ in range(4))
        self.table = self.table._replace(
            fixed=fixed, slope=slope, busy=busy, lost=lost, moved=moved
        )
        self._write(range(len(self._ways)))

    def _write(self, rows: range) -> None:
        for row in rows:
            way = self._ways[row]
            self.table.fixed[row] = way.fixed * NANO
            self.table.slope[row] = way.slope * NANO
            self.table.moved[row] = way.moved
            self.table.lost[row] = way.lost.fixed * NANO
            self.table.busy[row, COMPUTE] = way.lost.per_byte * NANO
            for place, slope in way.busy if way.queues else ():
                self.table.busy[row, self._kind[place]] = slope * NANO

    def _empty(self) -> CollectiveTable:
        cluster = self.pricer.cluster
        scatters, innermost = cluster.device.running.scatters, len(cluster.levels) - 1
        largest = max(max(cluster.hierarchy), 3 ** len(self.factors) if cluster.wired else 0)
        divisor = np.zeros((len(cluster.levels), largest + 1), np.int64)
        radix = np.zeros(len(cluster.levels), np.int64)
        patterns = 1
        for depth, cardinality in enumerate(cluster.hierarchy):
            if cluster.wired and depth == len(cluster.levels) - 1:
                divisor[depth, 0] = 3 ** sum(factor.level == depth for factor in self.factors)
                patterns *= int(divisor[depth, 0])
            else:
                for place, degree in enumerate(divisors(cardinality)):
                    divisor[depth, degree] = place
                radix[depth] = len(divisors(cardinality))
                patterns *= int(radix[depth]) ** 2
        return CollectiveTable(
            sizes=np.array([factor.size for factor in self.factors], np.int64),
            level=np.array([factor.level for factor in self.factors], np.int64),
            cutting=np.array(
                [scatters and factor.level == innermost for factor in self.factors], np.bool_
            ),
            divisor=divisor,
            radix=radix,
            row=np.full((len(NAMES), patterns), -1, np.int64),
            ways=np.zeros((len(NAMES), patterns), np.int64),
            fixed=np.zeros(64),
            slope=np.zeros(64),
            busy=np.zeros((64, len(self.kinds))),
            lost=np.zeros(64),
            moved=np.zeros(64),
        )

    def _find(self, operation: int, inside: int, every: int) -> Iterator[CollectiveWay]:
        kind = OPERATIONS[operation]
        if kind is Movement.SEND:
            # One device sends: what its machine has besides takes no part.
            outermost = min(f.level for i, f in enumerate(self.factors) if inside >> i & 1)
            inside = self._of_level(inside, outermost)
        pattern = self._pattern(inside, every)
        left = exposed_share(self.pricer.cluster.device.running, kind, pattern)
        for line in self.pricer.lines(kind, pattern):
            way = scaled(chained([(line, 1.0, bytes_moved(kind, pattern))]), left)
            # NCCL has channels for what goes from one device to another: these bytes share links
            # with collectives that are on their way, and do not queue behind them.
            apart = kind is Movement.SEND and self.pricer.backend == NCCL
            yield way._replace(queues=not apart)
        if not self.programs:
            return
        if kind is Collective.ALL_REDUCE:
            yield from self._reductions(inside, every)
        elif isinstance(kind, Collective):
            yield from self._in_steps(kind, inside, every)

    def _in_steps(self, kind: Collective, inside: int, every: int) -> Iterator[CollectiveWay]:
        """One collective a level, or several where that takes less to begin: what makes pieces
        smaller from the inside, the rest outwards.
        """
        depths = range(len(self.pricer.cluster.levels))
        levels = [level for level in (self._of_level(inside, depth) for depth in depths) if level]
        finer = [group for level in levels for group in self._cut(kind, inside, every, level)]
        for steps in dict.fromkeys((tuple(levels), tuple(finer))):
            if len(steps) > 1:
                outwards = kind in (Collective.ALL_GATHER, Collective.BROADCAST)
                yield self._stepwise(
                    kind, inside, every, steps if outwards else tuple(reversed(steps))
                )

    def _cut(self, kind: Collective, inside: int, every: int, level: int) -> tuple[int, ...]:
        """The factors of a level, as bits, in those groups that take least to begin."""
        bits = [1 << factor for factor in set_bits(level)]
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for end in range(1, len(bits) + 1):
            groups = [(begin, sum(bits[begin:end])) for begin in range(end)]
            best.append(
                min(
                    (
                        best[begin][0] + self._step(kind, inside, every, group)[0].fixed,
                        (*best[begin][1], group),
                    )
                    for begin, group in groups
                )
            )
        return best[-1][1]

    def _step(
        self, kind: Collective, inside: int, every: int, group: int
    ) -> tuple[CostLine, float]:
        """A step over some of a group's factors, and what it moves."""
        # Scattered data lies everywhere; what one has, or shall have, along outer factors only.
        scattered = kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        others = inside & ~group if scattered else inside & ((group & -group) - 1)
        pattern = self._pattern(group, every | others)
        line = min(self.pricer.lines(kind, pattern), key=lambda line: line.per_byte)
        return line, bytes_moved(kind, pattern)

    def _stepwise(
        self, kind: Collective, inside: int, every: int, groups: tuple[int, ...]
    ) -> CollectiveWay:
        held, steps = 1.0, []
        for group in groups:
            line, moved = self._step(kind, inside, every, group)
            steps.append((line, held, moved))
            ways = math.prod(self.factors[factor].size for factor in set_bits(group))
            if kind is Collective.REDUCE_SCATTER:
                held /= ways
            elif kind is Collective.ALL_GATHER:
                held *= ways
        places = {factor: place for place, factor in enumerate(set_bits(inside))}
        return chained(steps)._replace(
            steps=tuple(tuple(places[factor] for factor in set_bits(bits)) for bits in groups)
        )

    def _of_level(self, bits: int, depth: int) -> int:
        return sum(1 << i for i, f in enumerate(self.factors) if f.level == depth and bits >> i & 1)

    def _reductions(self, inside: int, every: int) -> Iterator[CollectiveWay]:
        hierarchy = summed_hierarchy(self.pricer.cluster, inside, every)
        space, seen = MoveSpace(hierarchy), set()
        for payload in PAYLOADS:
            priced = cheapest(hierarchy, self.pricer, payload)
            key = (priced.program, tuple(step.line for step in priced.steps))
            if key not in seen and len(priced.steps) > 1:
                seen.add(key)
                verified(hierarchy, priced.program)
                yield way_of_program(space, priced, payload)

    def _pattern(self, inside: int, every: int) -> Pattern:
        digits: list[list[Digit]] = [[] for _ in self.pricer.cluster.levels]
        for number, factor in enumerate(self.factors):
            use = PatternUse.MEMBER if inside >> number & 1 else PatternUse.FIRST
            if every >> number & 1:
                use = PatternUse.EVERY
            digits[factor.level].append(Digit(factor.size, use))
        return tuple(map(tuple, digits))


def _links(cluster: Cluster) -> Iterator[tuple[int, Link]]:
    for depth, level in enumerate(cluster.levels):
        for link in level.links:
            yield depth, link
