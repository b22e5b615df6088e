"""What tasks a layout has, recomputed from definitions: a slow twin of `simulate.assign`.

For each task of a problem: whether it is live, how long it takes, which devices it uses and how
long it holds links of each kind; and for each pair of tasks which of its edges are live. Pieces are
priced by the operator pricer, movements by `resharding` (judged by elements) and `Prices.way`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.cost.single_device_step import TRAFFIC
from meshwright.lower.bundles import EdgeConsumer, EdgeProducer, TensorEdge
from meshwright.lower.prefetch import AHEAD
from meshwright.sharding.reshard import MOST, NAMES, Codes, resharding
from meshwright.sharding.states import PARTIAL, WHOLE
from meshwright.simulate.problem import StepModel
from support.slow_layers import recomputed

Label = tuple[str, int, int]
States = tuple[int, ...]
Cube = tuple[int | None, ...]
"""For each factor a coordinate, or None for all."""
SHARD = 99

Step = tuple[tuple[int, int, int], float]
"""An operation with its factors, as bits, and the bytes held."""


class Task(NamedTuple):
    """A live task."""

    duration: int
    cubes: tuple[Cube, ...]
    hold: tuple[int, ...]


class Cost(NamedTuple):
    """Nanoseconds, by kind those for which links are held, and bytes that leave devices."""

    time: float
    busy: tuple[float, ...]
    moved: float

    def plus(self, other: Cost) -> Cost:
        busy = tuple(a + b for a, b in zip(self.busy, other.busy, strict=True))
        return Cost(self.time + other.time, busy, self.moved + other.moved)


class Twin:
    """The tasks, edges and bytes of a problem under some roles."""

    def __init__(self, problem: StepModel, roles: Codes) -> None:
        self.problem, self.roles = problem, [tuple(map(int, row)) for row in roles]
        self.sizes = [factor.size for factor in problem.factors]
        self.micro = range(problem.options.micro_batches)
        self.tasks: dict[Label, Task] = {}
        self.edges: dict[tuple[Label, Label], list[bool]] = defaultdict(list)
        self.moved = 0.0
        self.flows = [any(any(m.wanted) for m in unit.members) for unit in problem.units]
        for unit in range(len(problem.units)):
            self._unit(unit)
        for number, bundle in enumerate(problem.bundles):
            if bundle.parameters:
                self._parameters(number, bundle)
            else:
                self._made(number, bundle)
        if problem.options.zero == 3:
            self._ahead()

    def cube(self, states: States) -> Cube:
        """Where something with these roles or states lies, among devices told apart."""
        return tuple(
            -3 - s if s < PARTIAL and telling else None
            for s, telling in zip(states, self.problem.apart, strict=True)
        )

    def states(self, unit: int, boundary: tuple[int, ...]) -> States:
        """The state of a port's tensor along each factor."""
        return tuple(boundary[role] if role >= 0 else role for role in self.roles[unit])

    def _unit(self, unit: int) -> None:
        group, micro = self.problem.units[unit], self.problem.options.micro_batches
        degrees = {}
        for split in range(len(group.splits)):
            degree = math.prod(
                size
                for size, role in zip(self.sizes, self.roles[unit], strict=True)
                if role == split
            )
            degrees[split] = degree * group.micro_ways(split, micro)
        prices = [
            self.problem.operators.price(member.piece(degrees), member.wanted)
            for member in group.members
        ]
        forward = max(1, round(sum(p.forward.seconds for p in prices) * 1e9))
        backward = max(1, round(sum(p.backward.seconds for p in prices) * 1e9))
        if self._runs_again(unit):
            backward += forward
        for m in self.micro:
            self._compute(("forward", unit, m), forward, self.cube(self.roles[unit]))
            if self.flows[unit]:
                self._compute(("backward", unit, m), backward, self.cube(self.roles[unit]))
            self.edges[("forward", unit, m), ("backward", unit, m)].append(self.flows[unit])

    def _runs_again(self, unit: int) -> bool:
        """Whether a unit lies in a repeated layer that is recomputed."""
        return self.problem.units[unit].name in self._repeated

    @cached_property
    def _repeated(self) -> dict[str, tuple[int, int]]:
        return recomputed(self.problem.graph, self.problem.options)

    def _compute(self, label: Label, duration: int, cube: Cube) -> None:
        hold = (duration, *[0] * (len(self.problem.prices.kinds) - 1))
        self.tasks[label] = Task(duration, (cube,), hold)

    def _made(self, number: int, bundle: TensorEdge) -> None:
        """A tensor that a unit makes: there to its readers, its gradient back."""
        (source,) = bundle.sources
        maker, boundary = bundle.maker, source.boundary
        home = self.states(maker, boundary.forward)
        home_back = None if boundary.backward is None else self.states(maker, boundary.backward)
        again = self._runs_again(maker) and self.flows[maker]
        forward_cost, backward_cost = self._nothing(), self._nothing()
        waiting: list[tuple[EdgeConsumer, bool, bool]] = []
        read: set[States] = set()
        left: set[States] = set()
        for consumer in bundle.consumers:
            needed = self.states(consumer.unit, consumer.boundary.forward)
            cost = self._resharded(home, needed, source.bytes)
            beside = self._beside(consumer, backward=False)
            after = self._beside(consumer, backward=True)
            go = cost.time > 0 or beside.time > 0
            forward_cost = forward_cost.plus(cost if needed not in read else self._nothing()).plus(
                beside
            )
            read.add(needed)
            come = False
            if consumer.boundary.backward is not None and self.flows[consumer.unit]:
                assert home_back is not None
                gradient = self.states(consumer.unit, consumer.boundary.backward)
                cost = self._resharded(gradient, home_back, source.bytes)
                come = cost.time > 0 or after.time > 0
                backward_cost = backward_cost.plus(
                    cost if gradient not in left else self._nothing()
                ).plus(after)
                left.add(gradient)
                if again:
                    come = come or go
            waiting.append((consumer, go, come))
        if again and forward_cost.time > 0:
            backward_cost = backward_cost.plus(self._once_more(forward_cost))
        for m in self.micro:
            carry, reverse = ("carry", number, m), ("return", number, m)
            forward, backward = ("forward", maker, m), ("backward", maker, m)
            self._collective(
                carry, forward_cost, maker, [consumer.unit for consumer, go, _ in waiting if go]
            )
            self._collective(
                reverse,
                backward_cost,
                maker,
                [consumer.unit for consumer, _, come in waiting if come],
            )
            self.edges[forward, carry].append(forward_cost.time > 0)
            self.edges[reverse, backward].append(backward_cost.time > 0)
            for consumer, go, come in waiting:
                reader, undone = ("forward", consumer.unit, m), ("backward", consumer.unit, m)
                self.edges[carry, reader].append(go)
                self.edges[undone, reverse].append(come)
                self.edges[forward, reader].append(True)
                self.edges[undone, backward].append(self.flows[consumer.unit] and self.flows[maker])
            self.moved += forward_cost.moved + backward_cost.moved

    def _parameters(self, number: int, bundle: TensorEdge) -> None:
        zero, maker = self.problem.options.zero, bundle.maker
        early = self.problem.options.early and zero in (1, 2)
        forward_cost, backward_cost = self._nothing(), self._nothing()
        gathering: list[Step] = []
        carrying: list[Step] = []
        bytes_here = 0.0
        trained = any(source.trained for source in bundle.sources)
        seen: set[tuple[str, int, States]] = set()
        returning: list[Step] = []
        waiting: list[tuple[EdgeConsumer, bool, bool]] = []
        for tensor, source in enumerate(bundle.sources):
            plain = self.states(source.maker, source.boundary.forward)
            shards = self._sharded(bundle, tensor, source) if zero else plain
            if source.trained:
                cut = zip(self.sizes, shards, strict=True)
                bytes_here += source.bytes / math.prod(size for size, s in cut if s >= 0)
                if zero in (1, 2) and not early:
                    gathering += self._steps(shards, plain, source.bytes)
        for consumer in bundle.consumers:
            source = bundle.sources[consumer.tensor]
            plain = self.states(source.maker, source.boundary.forward)
            shards = self._sharded(bundle, consumer.tensor, source) if zero else plain
            needed = self.states(consumer.unit, consumer.boundary.forward)
            carry_steps = self._steps(shards if zero == 3 or early else plain, needed, source.bytes)
            beside = self._beside(consumer, backward=False)
            after = self._beside(consumer, backward=True)
            go = bool(carry_steps) or beside.time > 0
            if ("there", consumer.tensor, needed) not in seen:
                carrying += carry_steps
            seen.add(("there", consumer.tensor, needed))
            forward_cost = forward_cost.plus(beside)
            come = False
            if consumer.boundary.backward is not None and self.flows[consumer.unit]:
                gradient = self.states(consumer.unit, consumer.boundary.backward)
                assert source.boundary.backward is not None
                home = shards if zero else self.states(source.maker, source.boundary.backward)
                steps = self._steps(gradient, home, source.bytes)
                come = bool(steps) or after.time > 0
                if ("back", consumer.tensor, gradient) not in seen:
                    returning += steps
                seen.add(("back", consumer.tensor, gradient))
                backward_cost = backward_cost.plus(after)
            waiting.append((consumer, go, come))
        backward_cost = backward_cost.plus(self._together(returning))
        gather = self._together(gathering)
        together = self._together if zero == 3 or early else self._one_by_one
        forward_cost = forward_cost.plus(together(carrying))
        update, regather = ("update", number, 0), ("regather", number, 0)
        sums = self.micro if self.problem.options.sync_each else range(1)
        goers = [consumer.unit for consumer, go, _ in waiting if go]
        uses = self.micro if zero == 3 else range(1)
        for m in uses:
            self._collective(("carry", number, m), forward_cost, maker, goers)
            if zero == 3:
                self._collective(("again", number, m), forward_cost, maker, goers)
        comers = [consumer.unit for consumer, _, come in waiting if come]
        for m in sums:
            self._collective(("return", number, m), backward_cost, maker, comers)
            returned = ("return", number, m), update
            self.edges[returned].append(backward_cost.time > 0 and trained)
        makers = [source.maker for source in bundle.sources]
        self._collective(regather, gather, None, makers)
        if trained:
            device, optimizer = self.problem.cluster.device, self.problem.options.optimizer
            rates = self.problem.operators.rates
            rate = TRAFFIC[optimizer] / (device.memory_bandwidth * rates.streaming)
            time = max(1, round((rates.launch + rate * bytes_here) * 1e9))
            self._compute(update, time, self._hull(makers))
        self.edges[update, regather].append(gather.time > 0)
        for consumer, go, come in waiting:
            flows = consumer.boundary.backward is not None and self.flows[consumer.unit]
            learns = bundle.sources[consumer.tensor].trained and self.flows[consumer.unit]
            for m in self.micro:
                reader, undone = ("forward", consumer.unit, m), ("backward", consumer.unit, m)
                carry, again = ("carry", number, m if zero == 3 else 0), ("again", number, m)
                reverse = ("return", number, m if len(sums) > 1 else 0)
                self.edges[carry, reader].append(go)
                self.edges[undone, reverse].append(come)
                if zero == 3:
                    self.edges[again, undone].append(go and flows)
                self.edges[undone, update].append(learns)
        fetched = 2 * len(uses) if zero == 3 else 1
        self.moved += forward_cost.moved * fetched + backward_cost.moved * len(sums) + gather.moved

    def _ahead(self) -> None:
        """Fetching waits for the use that is over when the AHEADth before its own begins; one
        stage, accumulating.
        """
        used: list[Label] = []
        kept = [(b, edge) for b, edge in enumerate(self.problem.bundles) if edge.parameters]
        units = range(len(self.problem.units))
        for m in self.micro:
            for kind, fetch, order in (
                ("forward", "carry", units),
                ("backward", "again", reversed(units)),
            ):
                for unit in order:
                    bundles = [b for b, bundle in kept if self._first(bundle, kind) == unit]
                    for b in bundles if len(used) > AHEAD else ():
                        label = (fetch, b, m)
                        self.edges[used[len(used) - AHEAD - 1], label].append(label in self.tasks)
                    if bundles:
                        used.append((kind, unit, m))

    def _first(self, bundle: TensorEdge, kind: str) -> int | None:
        """The unit that is the first to read a bundle in a pass."""
        if kind == "forward":
            return min(consumer.unit for consumer in bundle.consumers)
        readers = (
            g.unit
            for g in bundle.consumers
            if g.boundary.backward is not None and self.flows[g.unit]
        )
        return max(readers, default=None)

    def _sharded(self, bundle: TensorEdge, tensor: int, source: EdgeProducer) -> States:
        """Cut along a dim of its own wherever its gradient is a pending sum."""
        plain = self.states(source.maker, source.boundary.forward)
        consumer = next(consumer for consumer in bundle.consumers if consumer.tensor == tensor)
        if not source.trained or consumer.boundary.backward is None:
            return plain
        gradient = self.states(source.maker, consumer.boundary.backward)
        within, behind = self.problem.options.shard_within, list[int]()
        for size in reversed(self.sizes):
            behind.insert(0, size * (behind[0] if behind else 1))
        return tuple(
            SHARD if g == PARTIAL and not 0 < within < devices else p
            for p, g, devices in zip(plain, gradient, behind, strict=True)
        )

    def _once_more(self, cost: Cost) -> Cost:
        """A task that was rounded to nanoseconds, as a part of another."""
        duration = max(1, round(cost.time))
        busy = tuple(float(min(duration, math.ceil(occupied))) for occupied in cost.busy)
        return Cost(float(duration), busy, cost.moved)

    def _nothing(self) -> Cost:
        return Cost(0.0, (0.0,) * len(self.problem.prices.kinds), 0.0)

    def _steps(self, produced: States, needed: States, total: float) -> list[Step]:
        operation, held = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
        count = resharding(
            np.array(produced, np.int8),
            np.array(needed, np.int8),
            np.array(self.sizes, np.int64),
            float(total),
            np.zeros(len(produced), np.int8),
            operation,
            held,
        )
        rows = zip(operation[:count].tolist(), held[:count].tolist(), strict=True)
        return [(tuple(row), amount) for row, amount in rows]

    def _resharded(self, produced: States, needed: States, total: float) -> Cost:
        return self._one_by_one(self._steps(produced, needed, total))

    def _together(self, steps: list[Step]) -> Cost:
        """Collectives for parameters; in a bucket those that are alike run as one."""
        if self.problem.options.bucket:
            alike: dict[tuple[int, int, int], float] = defaultdict(float)
            for row, held in steps:
                alike[row] += held
            steps = list(alike.items())
        return self._one_by_one(steps)

    def _one_by_one(self, steps: list[Step]) -> Cost:
        cost = self._nothing()
        for row, held in steps:
            cost = cost.plus(self._priced(*row, held))
        return cost

    def _beside(self, consumer: EdgeConsumer, *, backward: bool) -> Cost:
        """What a reader's neighbours exchange: rows beyond cuts, and statistics."""
        cost, boundary = self._nothing(), consumer.boundary
        for split, rows in enumerate(boundary.halo):
            # The rows are those of the piece, which other splits cut too.
            others = {n for n, state in enumerate(boundary.forward) if state >= 0} - {split}
            cost = cost.plus(self._exchanged(consumer, "Shift", split, rows, others))
        for split, statistic in enumerate(boundary.statistics):
            if statistic is None:
                continue
            for _ in range(statistic.backward if backward else statistic.forward):
                others = set(statistic.cut_by)
                cost = cost.plus(
                    self._exchanged(consumer, "AllReduce", split, statistic.bytes, others)
                )
        for split, tokens in enumerate(boundary.exchanged):
            for _ in range(2):
                others = {n for n, state in enumerate(boundary.forward) if state >= 0}
                cost = cost.plus(self._exchanged(consumer, "AllToAll", split, tokens / 2, others))
        return cost

    def _exchanged(
        self, consumer: EdgeConsumer, name: str, split: int, amount: float, others: set[int]
    ) -> Cost:
        roles, piece_amount = self.roles[consumer.unit], float(amount)
        inside = sum(1 << f for f, role in enumerate(roles) if role == split)
        every = sum(1 << f for f, r in enumerate(roles) if r >= WHOLE and r != split)
        if not inside or not amount:
            return self._nothing()
        for size, role in zip(self.sizes, roles, strict=True):
            if role in others:
                piece_amount /= size
        return self._priced(NAMES.index(name), inside, every, piece_amount)

    def _priced(self, operation: int, inside: int, every: int, held: float) -> Cost:
        prices = self.problem.prices
        way = prices.way(operation, inside, every, held)
        busy = [0.0] * len(prices.kinds)
        busy[0] = (way.lost.fixed + way.lost.per_byte * held) * 1e9
        # The table of collectives tells what queues: NCCL's sends between devices do not.
        for (level, link), slope in way.busy if way.queues else ():
            name = f"{self.problem.cluster.levels[level].name}/{link}"
            busy[prices.kinds.index(name)] += slope * 1e9 * held
        return Cost((way.fixed + way.slope * held) * 1e9, tuple(busy), way.moved * held)

    def _hull(self, units: list[int]) -> Cube:
        cubes = [self.cube(self.roles[unit]) for unit in units]
        return tuple(
            coordinates[0] if len(set(coordinates)) == 1 else None
            for coordinates in zip(*cubes, strict=True)
        )

    def _collective(self, label: Label, cost: Cost, maker: int | None, readers: list[int]) -> None:
        if cost.time <= 0:
            return
        duration = max(1, round(cost.time))
        hold = tuple(min(duration, math.ceil(occupied)) for occupied in cost.busy)
        hull = self._hull(readers)
        one = hull if maker is None else self.cube(self.roles[maker])
        self.tasks[label] = Task(duration, (one, hull) if hull != one else (one,), hold)
