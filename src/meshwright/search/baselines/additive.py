"""What every layout of a unit costs, and every pair of layouts of two units that exchange tensors.
Enters: a graph, a cluster. Leaves: a `CostGraph` in nanoseconds, and the layouts that it chooses
among.

    node  both passes of the unit; halos and statistics that its parts exchange, there and back;
          sums of the gradients of its own parameters
    edge  moving tensors from the maker to the reader and their gradients back; for parameters that
          several units share, fetching them from the first and returning their gradients, which
          costs nothing if both units are laid out alike, as it is part of the sum at the first
Units that share parameters and can be cut alike, as the steps of a recurrent layer, are one node.
Sums, not a schedule: nothing overlaps here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.cluster.model import Cluster
from meshwright.foundation.compiled import compiled
from meshwright.graph.model import OperatorGraph
from meshwright.parallelize.layout import REPLICA, Layout
from meshwright.parallelize.reshard import ALL_REDUCE, MOST, SHIFT, resharding
from meshwright.parallelize.states import WHOLE, State
from meshwright.parallelize.units import Port, Unit, units
from meshwright.price.operator import OperatorPricer
from meshwright.price.step import Pricer
from meshwright.search.baselines.choices import choices_of
from meshwright.search.baselines.elimination import CostGraph, Costs
from meshwright.simulate.bundles import Bundle, Leg, Source, bundles
from meshwright.simulate.prices import NANO, Prices, Table, price
from meshwright.simulate.times import DEGREE_BITS, MOST_SPLITS, Times, slot_of

Codes = NDArray[np.int8]


class Space(NamedTuple):
    """Costs, for each node the layouts that are its choices, and for each unit its node."""

    costs: CostGraph
    layouts: tuple[tuple[Layout, ...], ...]
    node: tuple[int, ...]

    def chosen(self, choice: Sequence[int]) -> list[Layout]:
        """The layouts of all units."""
        return [self.layouts[node][choice[node]] for node in self.node]


def space(graph: OperatorGraph, cluster: Cluster) -> Space:
    """The costs of all layouts that split samples, attributes and parameters on all devices."""
    parts = units(graph)
    joined = bundles(graph, parts)
    own = choices_of(parts, cluster)
    node = _nodes(joined, own)
    pricing = _Pricing(cluster, parts, own)
    choosing = {at: own[unit] for unit, at in enumerate(node)}
    costs = [np.zeros(len(choosing[at])) for at in range(len(choosing))]
    for unit, at in enumerate(node):
        costs[at] = costs[at] + pricing.node(unit)
    edges: dict[tuple[int, int], Costs] = {}
    for bundle in joined:
        for leg in bundle.legs:
            found = pricing.moved(bundle, bundle.sources[leg.tensor], leg)
            i, j = node[bundle.maker], node[leg.unit]
            if i == j:
                costs[i] = costs[i] + np.diagonal(found)
            else:
                pair, edge = ((i, j), found) if i < j else ((j, i), found.T)
                edges[pair] = edges[pair] + edge if pair in edges else edge
    return Space(CostGraph(costs, edges), tuple(choosing.values()), tuple(node))


def _nodes(joined: Sequence[Bundle], own: Sequence[tuple[Layout, ...]]) -> list[int]:
    """The node of each unit: one for all that share a parameter and can be cut alike."""
    first = list(range(len(own)))
    for bundle in joined:
        for leg in bundle.legs:
            if bundle.parameters and own[leg.unit] is own[bundle.maker]:
                first[leg.unit] = min(first[leg.unit], first[bundle.maker])
    number: dict[int, int] = {}
    return [number.setdefault(unit, len(number)) for unit in first]


class _Pricing:
    """Tables of prices, filled as they are needed."""

    def __init__(
        self, cluster: Cluster, parts: Sequence[Unit], chosen: Sequence[tuple[Layout, ...]]
    ) -> None:
        self._prices = Prices(Pricer(cluster, algorithm="best"))
        self._times = Times(tuple(parts), OperatorPricer(cluster.device), cluster.devices)
        self._parts, self._sizes = parts, self._prices.table.sizes
        self._known: dict[object, Costs] = {}
        self._nodes: dict[object, Costs] = {}
        self._roles = [_numbered(unit, own) for unit, own in zip(parts, chosen, strict=True)]

    def node(self, number: int) -> Costs:
        """Both passes of a unit and what its parts exchange, under each layout."""
        roles = self._roles[number]
        key = (int(self._times.type[number]), roles.tobytes())
        if key not in self._nodes:
            self._nodes[key] = self._computed(number) + self._exchanged(number)
        return self._nodes[key]

    def _computed(self, number: int) -> Costs:
        keys = np.full(len(self._roles[number]), self._times.type[number])
        for split in reversed(range(MOST_SPLITS)):
            degrees = np.where(self._roles[number] == split, self._sizes, 1).prod(axis=1)
            keys = keys << DEGREE_BITS | self._times.table.place[degrees]
        for key in np.unique(keys).tolist():
            if self._times.table.key[slot_of(self._times.table, key)] != key:
                self._times.fill(key)
        table = self._times.table
        rows = [slot_of(table, key) for key in keys.tolist()]
        return (table.there[rows] + table.back[rows]).astype(np.float64)

    def _exchanged(self, number: int) -> Costs:
        """Halos and statistics, in both passes."""
        unit, roles = self._parts[number], self._roles[number]
        total = np.zeros(len(roles))
        for port in unit.inputs:
            passes = 1 if port.back is None else 2
            for split in range(len(unit.splits)):
                rows = port.halo[split] if port.halo else 0
                numbers = port.statistics[split] if port.statistics else 0
                if rows or numbers:
                    for at, own in enumerate(roles):
                        total[at] += passes * self._told(port, split, rows, numbers, own)
        return total

    def _told(
        self, port: Port, split: int, rows: int, numbers: int, roles: NDArray[np.int64]
    ) -> float:
        """What the parts of a split tell each other, once."""
        inside = sum(1 << f for f in np.flatnonzero(roles == split).tolist())
        if not inside:
            return 0.0
        cut = [f for f, s in enumerate(roles) if s not in (WHOLE, split) and port.there[s] >= 0]
        every = (1 << len(roles)) - 1 & ~inside
        total = 0.0
        shared = rows / float(self._sizes[cut].prod())
        for operation, held in ((SHIFT, shared), (ALL_REDUCE, float(numbers))):
            if held:
                way = self._prices.way(operation, inside, every, held)
                total += NANO * (way.fixed + way.slope * held)
        return total

    def moved(self, bundle: Bundle, source: Source, leg: Leg) -> Costs:
        """Of a tensor there and its gradient back: [layouts of the maker, of the reader]."""
        maker, reader = self._roles[bundle.maker], self._roles[leg.unit]
        home, read = _codes(source.port.there, maker), _codes(leg.port.there, reader)
        total = self._resharded(home, read, source.bytes)
        if leg.port.back is not None and source.port.back is not None:
            made, wanted = _codes(leg.port.back, reader), _codes(source.port.back, maker)
            back = self._resharded(made, wanted, source.bytes).T
            if bundle.parameters and leg.unit != bundle.maker:
                first = next(own for own in bundle.legs if own.tensor == leg.tensor)
                alike = (home[:, None] == read).all(axis=2)
                alike &= (_codes(first.port.back or (), maker)[:, None] == made).all(axis=2)
                back = np.where(alike, 0.0, back)
            total = total + back
        return total

    def _resharded(self, made: Codes, needed: Codes, size: int) -> Costs:
        """Nanoseconds for each pair of states, computed once for each distinct pair."""
        before, row = np.unique(made, axis=0, return_inverse=True)
        after, column = np.unique(needed, axis=0, return_inverse=True)
        key = (before.tobytes(), after.tobytes(), size)
        if key not in self._known:
            self._known[key] = self._priced(before, after, float(size))
        full: Costs = self._known[key][row.reshape(-1)[:, None], column.reshape(-1)[None, :]]
        return full

    def _priced(self, before: Codes, after: Codes, size: float) -> Costs:
        found = np.zeros((len(before), len(after)))
        room = _Room(
            np.zeros(before.shape[1], np.int8),
            np.zeros((MOST, 3), np.int64),
            np.zeros(MOST),
            np.zeros(len(self._prices.kinds)),
            np.zeros(3, np.int64),
        )
        at = 0
        while at < found.size:
            at = _price_pairs(self._prices.table, before, after, size, found, at, room)
            if at < found.size:
                self._prices.fill(*room.missing.tolist())
        return found


def _numbered(unit: Unit, chosen: Sequence[Layout]) -> NDArray[np.int64]:
    """For each layout and factor the number of the split, WHOLE for copies."""
    number = {split.name: n for n, split in enumerate(unit.splits)} | {REPLICA: WHOLE}
    rows = [[number[role] for role in own.roles] for own in chosen]
    return np.array(rows, np.int64).reshape(len(chosen), -1)


def _codes(states: Sequence[State], roles: NDArray[np.int64]) -> Codes:
    """The states of a tensor under each layout; whole where there are copies."""
    table = np.array([*states, WHOLE], np.int8)
    return np.ascontiguousarray(table[roles])


class _Room(NamedTuple):
    """Room for compiled code, which makes no arrays."""

    scratch: Codes
    operation: NDArray[np.int64]
    held: NDArray[np.float64]
    busy: NDArray[np.float64]
    missing: NDArray[np.int64]
    """The operation, its members and those beside that a table lacks."""


@compiled
def _price_pairs(
    table: Table, before: Codes, after: Codes, size: float, found: Costs, at: int, room: _Room
) -> int:
    """Price resharding from pair `at` on; the pair at which a row of the table is missing."""
    operation, held = room.operation, room.held
    columns = found.shape[1]
    while at < found.shape[0] * columns:
        made, needed = before[at // columns], after[at % columns]
        count = resharding(made, needed, table.sizes, size, room.scratch, operation, held)
        total = 0.0
        for n in range(count):
            kind, inside, every = operation[n, 0], operation[n, 1], operation[n, 2]
            time, _ = price(table, kind, inside, every, held[n], room.busy)
            if time < 0:
                room.missing[0], room.missing[1], room.missing[2] = kind, inside, every
                return at
            total += time
        found[at // columns, at % columns] = total
        at += 1
    return at
