"""Collectives of each communication task, listed for reports. Enters: a laid-out problem. Leaves:
for each such task its collectives, one after the other, each with the way in which it is carried
out.

`assign` adds the same collectives up while it writes tasks; here they are told one by one, for
people. Their seconds add up to a task's duration but for rounding, which is a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.base.integers import set_bits
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.lower.bundles import EdgeConsumer, TensorEdge
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import (
    ALL_REDUCE,
    ALL_TO_ALL,
    MOST,
    NAMES,
    SHIFT,
    Codes,
    resharding_by_parts,
)
from meshwright.sharding.states import PARTIAL, WHOLE
from meshwright.simulate.collective_implementations import CollectiveWay
from meshwright.simulate.edge_collectives import SHARD
from meshwright.simulate.problem import StepModel

States = tuple[int, ...]
_Step = tuple[tuple[int, int, int], float]
"""An operation, its members and what runs side by side, as bits of factors; bytes held."""


class EdgeCollective(NamedTuple):
    """One collective."""

    operation: str
    over: tuple[int, ...]
    """The factors along which its members lie, by number."""
    beside: tuple[int, ...]
    """The factors along which the same runs side by side."""
    held: float
    """Bytes of each member."""
    way: CollectiveWay

    @property
    def seconds(self) -> Seconds:
        """How long it takes by itself."""
        return Seconds(self.way.fixed + self.way.slope * self.held)

    @property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """The factors of each collective that carries it out, one after the other."""
        if not self.way.steps:
            return (self.over,)
        return tuple(tuple(self.over[place] for place in step) for step in self.way.steps)

    def link(self, cluster: Cluster) -> str:
        """The link that paces it, with its level."""
        (level, link), _ = max(self.way.busy, key=lambda entry: entry[1])
        return f"{cluster.levels[level].name}/{link}"


def moves(problem: StepModel) -> dict[tuple[str, int], tuple[EdgeCollective, ...]]:
    """The collectives of the tasks of each kind (`Labels.kind`) about each bundle."""
    telling = _Telling(problem)
    collectives: dict[tuple[str, int], tuple[EdgeCollective, ...]] = {}
    for number, bundle in enumerate(problem.bundles):
        forward, backward, gather = (
            telling.forward(bundle),
            telling.backward(bundle),
            telling.gather(bundle),
        )
        for kind, steps in (("carry", forward), ("again", forward), ("return", backward)):
            collectives[kind, number] = telling.moves(steps)
        collectives["regather", number] = telling.moves(gather)
    return collectives


def ways_by_level(cluster: Cluster, numbers: Sequence[int]) -> str:
    """Factors as a person says it: how many ways of which level.

    >>> ways_by_level(Cluster.named("dgx-h100", node=2), (0, 2, 3))
    '2 node and 4 gpu'
    """
    mesh_factors, ways = factors(cluster), dict[str, int]()
    for number in numbers:
        name = cluster.level_names[mesh_factors[number].level]
        ways[name] = ways.get(name, 1) * mesh_factors[number].size
    return " and ".join(f"{count} {name}" for name, count in ways.items())


class _Telling:
    """The roles that a problem holds, as states of tensors."""

    def __init__(self, problem: StepModel) -> None:
        self._problem, self._zero = problem, problem.options.zero
        self._early = problem.options.early and self._zero in (1, 2)
        self._fetched = self._zero == 3 or self._early
        self._roles: list[States] = [tuple(row) for row in problem.roles.tolist()]
        self._known: dict[tuple[States, States, float], list[_Step]] = {}

    def forward(self, bundle: TensorEdge) -> list[_Step]:
        """What brings tensors to their readers."""
        steps, exchanged = list[_Step](), list[_Step]()
        read: set[object] = set()
        for consumer in bundle.consumers:
            source = bundle.sources[consumer.tensor]
            home = self._states(source.maker, source.boundary.forward)
            if self._fetched and bundle.parameters:
                home = self._sharded(bundle, consumer.tensor)
            needed = self._states(consumer.unit, consumer.boundary.forward)
            if (consumer.tensor, needed) not in read:
                steps += self._steps(home, needed, source.bytes)
            read.add((consumer.tensor, needed))
            exchanged += self._beside(consumer, backward=False)
        if self._fetched:
            steps = self._bucketed(bundle, steps)
        return steps + exchanged

    def backward(self, bundle: TensorEdge) -> list[_Step]:
        """What returns gradients; where a layer runs again, what was brought there once more."""
        problem, steps, left = self._problem, list[_Step](), set[object]()
        exchanged: list[_Step] = []
        flowing = [consumer for consumer in bundle.consumers if self._flows(consumer)]
        for consumer in flowing:
            source = bundle.sources[consumer.tensor]
            assert consumer.boundary.backward is not None
            assert source.boundary.backward is not None
            gradient = self._states(consumer.unit, consumer.boundary.backward)
            home = self._states(source.maker, source.boundary.backward)
            if self._zero and bundle.parameters:
                home = self._sharded(bundle, consumer.tensor)
            if (consumer.tensor, gradient) not in left:
                steps += self._steps(gradient, home, source.bytes)
            left.add((consumer.tensor, gradient))
            exchanged += self._beside(consumer, backward=True)
        steps = self._bucketed(bundle, steps)
        again = not bundle.parameters and problem.rates.again[bundle.maker]
        if again and problem.template.flows[bundle.maker] and flowing:
            exchanged += self.forward(bundle)
        return steps + exchanged

    def gather(self, bundle: TensorEdge) -> list[_Step]:
        """What brings together what was updated in shards."""
        if not bundle.parameters or self._zero not in (1, 2) or self._early:
            return []
        steps = [
            step
            for tensor, source in enumerate(bundle.sources)
            if source.trained
            for step in self._steps(
                self._sharded(bundle, tensor),
                self._states(source.maker, source.boundary.forward),
                source.bytes,
            )
        ]
        return self._bucketed(bundle, steps)

    def _bucketed(self, bundle: TensorEdge, steps: list[_Step]) -> list[_Step]:
        """What parameters of a bucket do alike, they do together."""
        bucket = bundle.parameters and self._problem.options.bucket
        return _together(steps) if bucket else steps

    def moves(self, steps: Sequence[_Step]) -> tuple[EdgeCollective, ...]:
        """Steps, each with the cheapest way."""
        way = self._problem.prices.way
        return tuple(
            EdgeCollective(
                NAMES[operation],
                set_bits(over),
                set_bits(beside),
                held,
                way(operation, over, beside, held),
            )
            for (operation, over, beside), held in steps
        )

    def _flows(self, consumer: EdgeConsumer) -> bool:
        return consumer.boundary.backward is not None and bool(
            self._problem.template.flows[consumer.unit]
        )

    def _states(self, unit: int, by_split: States) -> States:
        return tuple(by_split[role] if role >= 0 else role for role in self._roles[unit])

    def _sharded(self, bundle: TensorEdge, tensor: int) -> States:
        """How the optimizer holds a tensor: cut wherever its gradient is a pending sum."""
        source = bundle.sources[tensor]
        plain = self._states(source.maker, source.boundary.forward)
        consumer = next(consumer for consumer in bundle.consumers if consumer.tensor == tensor)
        if not (bundle.parameters and source.trained) or consumer.boundary.backward is None:
            return plain
        gradient = self._states(source.maker, consumer.boundary.backward)
        shards = self._problem.rates.shards.tolist()
        return tuple(
            SHARD if along and g == PARTIAL else p
            for along, p, g in zip(shards, plain, gradient, strict=True)
        )

    def _steps(self, produced: States, needed: States, size: float) -> list[_Step]:
        key = produced, needed, size
        if key not in self._known:
            sizes = self._problem.prices.table.sizes
            operation, held = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
            scratch: Codes = np.zeros(len(produced), np.int8)
            codes = np.array([produced, needed], np.int8)
            cutting = self._problem.prices.table.cutting
            count = resharding_by_parts(
                codes[0], codes[1], sizes, cutting, float(size), scratch, operation, held
            )
            rows = zip(operation[:count].tolist(), held[:count].tolist(), strict=True)
            self._known[key] = [((row[0], row[1], row[2]), bytes_held) for row, bytes_held in rows]
        return self._known[key]

    def _beside(self, consumer: EdgeConsumer, *, backward: bool) -> Iterator[_Step]:
        """What parts of a reader exchange: rows beyond cuts, statistics, tokens for experts."""
        for split, rows in enumerate(consumer.boundary.halo):
            # The rows are those of the piece, which other splits cut too.
            others = [
                n for n, state in enumerate(consumer.boundary.forward) if n != split and state >= 0
            ]
            yield from self._told(consumer.unit, SHIFT, split, rows, others)
        for split, statistic in enumerate(consumer.boundary.statistics):
            if statistic is not None:
                step = self._told(
                    consumer.unit, ALL_REDUCE, split, statistic.bytes, statistic.cut_by
                )
                yield from list(step) * (statistic.backward if backward else statistic.forward)
        for split, tokens in enumerate(consumer.boundary.exchanged):
            cutting = [n for n, state in enumerate(consumer.boundary.forward) if state >= 0]
            yield from 2 * list(self._told(consumer.unit, ALL_TO_ALL, split, tokens / 2, cutting))

    def _told(
        self, unit: int, kind: int, split: int, amount: float, others: Sequence[int]
    ) -> Iterator[_Step]:
        """What the parts of a split tell each other once, if it is cut."""
        roles, sizes = self._roles[unit], self._problem.prices.table.sizes.tolist()
        inside = sum(1 << f for f, role in enumerate(roles) if role == split)
        every = sum(1 << f for f, r in enumerate(roles) if r >= WHOLE and r != split)
        if inside and amount:
            ways = prod(size for size, role in zip(sizes, roles, strict=True) if role in others)
            yield (kind, inside, every), amount / ways


def _together(steps: Sequence[_Step]) -> list[_Step]:
    """Steps of a bucket: those that are alike run as one."""
    totals: dict[tuple[int, int, int], float] = {}
    for row, held in steps:
        totals[row] = totals.get(row, 0.0) + held
    return list(totals.items())
