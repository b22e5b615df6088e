"""The additive cost model (OptCNN, Jia et al. 2018): operators and resharding without overlap.
Enters: a graph on a cluster, roles. Leaves: nanoseconds of units, and of pairs of units that
exchange tensors, by what they can overlap with.

    unit      forward, backward   a pass on one micro-batch, with what its parts exchange: halos,
                                  statistics, tokens on their way to experts
              sums                of the gradients of its own parameters, once a step
              update              of its own parameters, once a step
    consumer  forward, backward   a tensor on its way to it and its gradient back, for a micro-batch
              sums                for parameters that several units share: fetching them from the
                                  first and returning their gradients, once a step; nothing if both
                                  lie alike, as it is part of the sum at the first
Units and consumers that cost the same have one kind, so that repeated layers are priced once.
Nothing here knows what runs beside what: that is told by weights, and in the end by `simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.cluster.cluster import Cluster
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.single_device_step import TRAFFIC
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import EdgeConsumer, EdgeProducer, TensorEdge
from meshwright.plan.options import Options
from meshwright.sharding.allowed import ANYTHING, Allowed
from meshwright.sharding.layout import factors, sharding
from meshwright.sharding.reshard import ALL_REDUCE, ALL_TO_ALL, MOST, SHIFT, Codes
from meshwright.sharding.states import PARTIAL, State
from meshwright.sharding.unit import BoundaryTensor
from meshwright.sharding.units import units
from meshwright.simulate.additive_costs import ConsumerCosts, Costs, EdgeCosts, OpGroupCosts
from meshwright.simulate.additive_pairs import PairWorkspace, mark_legal, price_pairs
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.simulate.edge_collectives import SHARD
from meshwright.simulate.edges import joined
from meshwright.simulate.operator_table import (
    DEGREE_BITS,
    MOST_SPLITS,
    OperatorTimes,
    look_up_rows,
    runs,
)


class _Known:
    """What has been priced with some options: graphs that compute the same have much in common."""

    def __init__(self) -> None:
        self.units: dict[object, int] = {}
        """The numbers of kinds, by what tells units apart."""
        self.consumers: dict[object, int] = {}
        self.examples: list[tuple[TensorEdge, EdgeProducer, EdgeConsumer]] = []
        """For each kind of consumers one."""
        self.of_unit: dict[object, OpGroupCosts] = {}
        self.of_leg: dict[object, ConsumerCosts] = {}
        self.resharded: dict[object, Costs] = {}


class AdditiveCosts:
    """Prices of one graph on one cluster, filled as they are needed."""

    def __init__(
        self,
        graph: OperatorGraph,
        cluster: Cluster,
        prices: CollectivePrices,
        operators: OperatorPricer,
        options: Options,
        allowed: Allowed = ANYTHING,
    ) -> None:
        """Of the options micro-batches, how often gradients are summed, the optimizer and among
        whom ZeRO shards count; its stage is asked for.
        """
        self.graph, self.cluster, self.options = graph, cluster, options
        self.units, self.factors = units(graph), factors(cluster)
        self.prices = prices
        micro = options.micro_batches
        self.times = OperatorTimes(self.units, operators, cluster.devices, micro, allowed)
        self.bundles = joined(graph, micro, 0).bundles
        moving = cluster.device.memory_bandwidth * operators.rates.streaming
        self._update = TRAFFIC[options.optimizer] / moving * NANO
        self._launch = operators.rates.launch * NANO
        self.kept: dict[int, list[tuple[EdgeProducer, EdgeConsumer, TensorEdge]]] = {}
        """For each unit the parameters that it is the first to read, and how it reads them."""
        for bundle in self.bundles:
            for s, source in enumerate(bundle.sources if bundle.parameters else ()):
                consumer = next(other for other in bundle.consumers if other.tensor == s)
                self.kept.setdefault(bundle.maker, []).append((source, consumer, bundle))
        self._beside: dict[int, list[BoundaryTensor]] = {}
        """For each unit its readings of which parts tell each other something, of a micro-batch."""
        for consumer in (other for bundle in self.bundles for other in bundle.consumers):
            if (
                consumer.boundary.halo
                or consumer.boundary.statistics
                or consumer.boundary.exchanged
            ):
                self._beside.setdefault(consumer.unit, []).append(consumer.boundary)
        self.shards = np.array(sharding(self.factors, options.shard_within), np.bool_)
        """[factors] whether ZeRO shards along a factor."""
        decided = micro, options.sums, options.optimizer, options.shard_within
        shared = ("costing", operators, *decided)
        self.known: _Known = prices.shared.setdefault(shared, _Known())
        self.kind = self._kinds()
        self.joints = tuple(self._joints())
        self._workspace = PairWorkspace(
            np.zeros(len(self.factors), np.int8),
            np.zeros((MOST, 3), np.int64),
            np.zeros(MOST),
            np.zeros(len(prices.kinds)),
            np.zeros(3, np.int64),
        )

    def unit(self, number: int, roles: Codes, zero: int = 0) -> OpGroupCosts:
        """What each layout of a unit costs with a stage of ZeRO."""
        key = (self.kind[number], zero, roles.tobytes())
        known = self.known.of_unit
        if key not in known:
            forward, backward = self._computed(number, roles)
            exchanged, returned = self._exchanged(number, roles)
            sums, update, fetched = self._kept_costs(number, roles, zero)
            known[key] = OpGroupCosts(
                forward + exchanged + fetched, backward + returned + fetched, sums, update
            )
        return known[key]

    def consumer(self, kind: int, maker: Codes, reader: Codes) -> ConsumerCosts:
        """What each pair of layouts costs along a consumer of some kind."""
        key = (kind, maker.tobytes(), reader.tobytes())
        if key not in self.known.of_leg:
            self.known.of_leg[key] = self._leg(kind, maker, reader)
        return self.known.of_leg[key]

    def _leg(self, kind: int, maker: Codes, reader: Codes) -> ConsumerCosts:
        bundle, source, consumer = self.known.examples[kind]
        home, read = (
            _states(source.boundary.forward, maker),
            _states(consumer.boundary.forward, reader),
        )
        forward = self._resharded(home, read, source.bytes)
        backward = np.zeros_like(forward)
        if consumer.boundary.backward is not None and source.boundary.backward is not None:
            produced, wanted = (
                _states(consumer.boundary.backward, reader),
                _states(source.boundary.backward, maker),
            )
            backward = self._resharded(produced, wanted, source.bytes).T
            if bundle.parameters:
                first = next(other for other in bundle.consumers if other.tensor == consumer.tensor)
                alike = (home[:, None] == read).all(axis=2)
                alike &= (_states(first.boundary.backward or (), maker)[:, None] == produced).all(
                    axis=2
                )
                backward = np.where(alike, 0.0, backward)
        if bundle.parameters:
            sums = forward + self.options.sums * backward
            return ConsumerCosts(np.zeros_like(forward), np.zeros_like(forward), sums)
        return ConsumerCosts(forward, backward, np.zeros_like(forward))

    def legal(self, number: int, roles: Codes) -> NDArray[np.bool_]:
        """Which layouts a unit can and may be cut in."""
        mask = np.ones(len(roles), np.bool_)
        splits, kind = len(self.units[number].splits), int(self.times.type[number])
        mark_legal(self.times.table, self.prices.table.sizes, kind, splits, roles, mask)
        return mask

    def _kinds(self) -> list[int]:
        """For each unit the number of its kind."""
        number = self.known.units
        kept = {
            unit: tuple(
                (
                    _form(source.boundary),
                    source.trained,
                    tuple(_form(consumer.boundary) for consumer in bundle.consumers),
                )
                for source, _, bundle in readings
            )
            for unit, readings in self.kept.items()
        }
        return [
            number.setdefault(
                (
                    runs(unit),
                    tuple(map(_form, unit.inputs)),
                    tuple(map(_form, unit.outputs)),
                    kept.get(u, ()),
                    tuple(map(_form, self._beside.get(u, ()))),
                ),
                len(number),
            )
            for u, unit in enumerate(self.units)
        ]

    def _joints(self) -> list[EdgeCosts]:
        number = self.known.consumers
        joints = []
        for bundle in self.bundles:
            for consumer in bundle.consumers:
                source = bundle.sources[consumer.tensor]
                if consumer.unit == bundle.maker:
                    continue
                first = next(other for other in bundle.consumers if other.tensor == consumer.tensor)
                form = (
                    _form(source.boundary),
                    _form(consumer.boundary),
                    _form(first.boundary),
                    source.bytes,
                )
                key = (bundle.parameters, self.kind[bundle.maker], self.kind[consumer.unit], form)
                if key not in number:
                    number[key] = len(self.known.examples)
                    self.known.examples.append((bundle, source, consumer))
                readers = {
                    other.unit for other in bundle.consumers if other.tensor == consumer.tensor
                }
                joints.append(EdgeCosts(bundle.maker, consumer.unit, number[key], len(readers)))
        return joints

    def _computed(self, number: int, roles: Codes) -> tuple[Costs, Costs]:
        keys = np.full(len(roles), self.times.type[number])
        for split in reversed(range(MOST_SPLITS)):
            degrees = np.where(roles == split, self.prices.table.sizes, 1).prod(axis=1)
            keys = keys << DEGREE_BITS | self.times.table.place[degrees]
        rows = np.zeros(len(keys), np.int64)
        at = 0
        while (at := look_up_rows(self.times.table, keys, rows, at)) < len(keys):
            self.times.fill(int(keys[at]))
        # A table that has grown has moved its rows.
        look_up_rows(self.times.table, keys, rows, 0)
        table = self.times.table
        flows = float(self.units[number].flows)
        return table.forward[rows].astype(np.float64), table.backward[rows].astype(
            np.float64
        ) * flows

    def _exchanged(self, number: int, roles: Codes) -> tuple[Costs, Costs]:
        """Halos, statistics and tokens for experts, in both passes."""
        forward, backward = np.zeros(len(roles)), np.zeros(len(roles))
        for boundary in self._beside.get(number, ()):
            flows = boundary.backward is not None and self.units[number].flows
            for split, rows in enumerate(boundary.halo):
                if rows:
                    others = [
                        n for n, state in enumerate(boundary.forward) if n != split and state >= 0
                    ]
                    costs = self._told(SHIFT, split, rows, others, roles)
                    forward += costs
                    backward += costs * flows
            for split, statistic in enumerate(boundary.statistics):
                if statistic is not None:
                    costs = self._told(ALL_REDUCE, split, statistic.bytes, statistic.cut_by, roles)
                    forward += costs * statistic.forward
                    backward += costs * statistic.backward * flows
            for split, tokens in enumerate(boundary.exchanged):
                if tokens:
                    cutting = [n for n, state in enumerate(boundary.forward) if state >= 0]
                    costs = 2 * self._told(ALL_TO_ALL, split, tokens / 2, cutting, roles)
                    forward += costs
                    backward += costs * flows
        return forward, backward

    def _told(
        self, operation: int, split: int, amount: float, others: Sequence[int], roles: Codes
    ) -> Costs:
        """What the parts of a split tell each other once, for each layout; others cut it too."""
        sizes, bits = self.prices.table.sizes, 1 << np.arange(roles.shape[1])
        inside = np.where(roles == split, bits, 0).sum(axis=1)
        every = np.where((roles > PARTIAL) & (roles != split), bits, 0).sum(axis=1)
        ways = np.where(np.isin(roles, others), sizes, 1).prod(axis=1)
        known: dict[tuple[int, int, int], float] = {}
        costs = []
        for key in zip(inside.tolist(), every.tolist(), ways.tolist(), strict=True):
            if key not in known:
                known[key] = self._exchange(operation, *key, amount)
            costs.append(known[key])
        return np.array(costs)

    def _exchange(self, operation: int, inside: int, every: int, ways: int, amount: float) -> float:
        """Bytes that are cut some ways, among the factors inside."""
        held = amount / ways
        if not inside:
            return 0.0
        way = self.prices.way(operation, inside, every, held)
        return NANO * (way.fixed + way.slope * held)

    def _kept_costs(self, number: int, roles: Codes, zero: int) -> tuple[Costs, Costs, Costs]:
        """Sums and updates of a unit's own parameters, and what it takes to fetch sharded ones."""
        sizes = self.prices.table.sizes
        sums, update, fetched = (np.zeros(len(roles)) for _ in range(3))
        updated = set[int]()
        for source, consumer, bundle in self.kept.get(number, ()):
            if not source.trained or consumer.boundary.backward is None:
                continue
            home, produced = (
                _states(source.boundary.forward, roles),
                _states(consumer.boundary.backward, roles),
            )
            held = (
                np.where(self.shards & (produced == PARTIAL), np.int8(SHARD), home)
                if zero
                else home
            )
            sums += self.options.sums * self._rows(produced, held, source.bytes)
            if zero in (1, 2):
                sums += self._rows(held, home, source.bytes)
            elif zero == 3:
                fetched += self._rows(held, home, source.bytes)
            ways = np.where(held >= 0, sizes, 1).prod(axis=1)
            update += self._update * source.bytes / ways
            updated.add(id(bundle))
        # The parameters of a bundle are updated by one task.
        return sums, update + self._launch * len(updated), fetched

    def _rows(self, produced: Codes, needed: Codes, size: int) -> Costs:
        """Nanoseconds for each pair of states in a row."""
        both, row = _distinct(np.hstack((produced, needed)))
        cut = produced.shape[1]
        return self._priced(both[:, :cut], both[:, cut:], float(size))[row]

    def _resharded(self, produced: Codes, needed: Codes, size: int) -> Costs:
        """Nanoseconds for each pair of states, computed once for each distinct pair."""
        before, row = _distinct(produced)
        after, column = _distinct(needed)
        pairs = np.repeat(before, len(after), axis=0), np.tile(after, (len(before), 1))
        full: Costs = self._priced(*pairs, float(size)).reshape(len(before), len(after))
        return full[np.ix_(row, column)]

    def _priced(self, before: Codes, after: Codes, size: float) -> Costs:
        """Nanoseconds from each state to the one beside it."""
        known = self.known.resharded
        key = (before.tobytes(), after.tobytes(), size)
        if key not in known:
            costs = np.zeros(len(before))
            before, after = np.ascontiguousarray(before), np.ascontiguousarray(after)
            at = 0
            while at < len(costs):
                at = price_pairs(self.prices.table, before, after, size, costs, at, self._workspace)
                if at < len(costs):
                    self.prices.fill(*self._workspace.missing.tolist())
            known[key] = costs
        return known[key]


def _form(boundary: BoundaryTensor) -> object:
    """A port without the name of its tensor."""
    return (
        boundary.bytes,
        boundary.forward,
        boundary.backward,
        boundary.halo,
        boundary.statistics,
        boundary.exchanged,
    )


def _states(by_split: Sequence[State], roles: Codes) -> Codes:
    """The states of a tensor under each layout: those that splits give it, else the roles."""
    table = np.array([*by_split, 0], np.int8)
    return np.where(roles >= 0, table[np.maximum(roles, 0)], roles).astype(np.int8)


def _distinct(rows: Codes) -> tuple[Codes, list[int]]:
    """The different rows, and for each row which of them it is; quicker for few than `unique`."""
    number: dict[bytes, int] = {}
    which = [number.setdefault(row.tobytes(), len(number)) for row in rows]
    distinct = np.frombuffer(b"".join(number), np.int8).reshape(len(number), rows.shape[1])
    # Compiled code would be compiled once more for what cannot be written.
    return distinct.copy(), which
