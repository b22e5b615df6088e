"""A plan as a list of instructions. Enters: a plan. Leaves: a `Script`: what is done in a step, in
one order for the whole machine, of which every device does its own part.

    Run(s, m)      segment s computes micro-batch m          Reverse(s, m)   its backward pass
    Carry(d, m)    delivery d moves                          Bring(r, m)     return r moves
    Gather(b)      sharded parameters are put together       Settle(b)       gradients are summed
A layer that runs again does so, with what is carried inside of it, before its backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from meshwright.plan.model import Plan
from meshwright.script.buckets import Bucket, buckets
from meshwright.script.segments import Segment, segments
from meshwright.script.slots import Turn, turns
from meshwright.script.wiring import Wiring

Kind = Literal["Run", "Reverse", "Carry", "Bring", "Gather", "Settle"]


class Instruction(NamedTuple):
    """One thing that some devices do together."""

    kind: Kind
    number: int
    micro_batch: int = 0
    again: bool = False
    """Whether a layer runs for its backward pass."""


class Script:
    """What a step consists of."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.wiring = plan, Wiring(plan)
        self.segments: tuple[Segment, ...] = segments(self.wiring)
        self.buckets: tuple[Bucket, ...] = buckets(self.wiring)
        self.home = {u: n for n, own in enumerate(self.segments) for u in own.units}
        """The segment of each unit."""
        self.flows = tuple(
            any(plan.units[unit].flows for unit in own.units) for own in self.segments
        )
        self.instructions = tuple(self._instructions())

    def _instructions(self) -> Iterator[Instruction]:
        waiting = self._readers()
        settling = self._unsettled()
        sharded = [
            number
            for number, bucket in enumerate(self.buckets)
            if any(own.shards for own in bucket.parameters)
        ]
        if self.plan.options.zero < 3:
            yield from (Instruction("Gather", number) for number in sharded)
        yield from self._tied()
        for turn in turns(self.plan):
            if turn.pass_ == "forward":
                yield from self._forward(turn)
                continue
            for own in self._backward(turn):
                yield own
                if own.kind != "Reverse":
                    continue
                yield from self._brought(own, waiting)
                yield from self._settled(own, settling)

    def _tied(self) -> Iterator[Instruction]:
        """Parameters that some reader needs otherwise than they lie."""
        for number, own in enumerate(self.wiring.deliveries):
            if own.steps and self.wiring.made[own.tensor].parameter:
                yield Instruction("Carry", number)

    def _forward(self, turn: Turn) -> Iterator[Instruction]:
        for number, own in enumerate(self.segments):
            if own.part == turn.part:
                yield from self._run(number, turn.micro_batch, again=False)

    def _run(self, number: int, micro: int, *, again: bool) -> Iterator[Instruction]:
        segment = self.segments[number]
        yield Instruction("Run", number, micro, again)
        for delivery in self._sent(segment):
            if not again or self._stays(delivery, segment):
                yield Instruction("Carry", delivery, micro, again)

    def _sent(self, segment: Segment) -> Iterator[int]:
        """The deliveries that a segment begins."""
        for number, own in enumerate(self.wiring.deliveries):
            made = self.wiring.made[own.tensor]
            if own.steps and not made.parameter and made.unit in segment.units:
                yield number

    def _stays(self, delivery: int, segment: Segment) -> bool:
        """Whether what is delivered is read in the same layer, and so needed again."""
        return any(
            reading.delivery == delivery and self.segments[self.home[unit]].layer == segment.layer
            for (unit, _), reading in self.wiring.readings.items()
        )

    def _backward(self, turn: Turn) -> Iterator[Instruction]:
        own = [number for number, s in enumerate(self.segments) if s.part == turn.part]
        for layer, run in groupby(reversed(own), key=lambda n: self.segments[n].layer):
            numbers = list(run)
            if layer is not None:
                for number in reversed(numbers):
                    yield from self._run(number, turn.micro_batch, again=True)
            for number in numbers:
                if self.flows[number]:
                    yield Instruction("Reverse", number, turn.micro_batch)

    def _readers(self) -> Counter[tuple[int, int]]:
        """For each return and micro-batch how many segments contribute."""
        found: set[tuple[int, int]] = set()
        for (unit, _), reading in self.wiring.readings.items():
            if reading.return_ is not None:
                found.add((reading.return_, self.home[unit]))
        return Counter(
            (number, micro)
            for number, _ in found
            for micro in range(self.plan.options.micro_batches)
        )

    def _brought(
        self, own: Instruction, waiting: Counter[tuple[int, int]]
    ) -> Iterator[Instruction]:
        """The returns to which a segment was the last to contribute."""
        for number in self._left(self.segments[own.number]):
            back = self.wiring.returns[number]
            waiting[number, own.micro_batch] -= 1
            if waiting[number, own.micro_batch] or self.wiring.made[back.tensor].parameter:
                continue
            if back.steps:
                yield Instruction("Bring", number, own.micro_batch)

    def _left(self, segment: Segment) -> list[int]:
        """The returns to which a segment contributes."""
        found = {
            reading.return_: None
            for (unit, _), reading in self.wiring.readings.items()
            if unit in segment.units and reading.return_ is not None
        }
        return list(found)

    def _unsettled(self) -> Counter[int]:
        """For each bucket how many backward passes it waits for."""
        found: Counter[int] = Counter()
        for number, bucket in enumerate(self.buckets):
            if any(own.returns for own in bucket.parameters):
                own = {self.home[unit] for unit in bucket.units}
                backward = sum(self.flows[segment] for segment in own)
                found[number] = backward * self.plan.options.micro_batches
        return found

    def _settled(self, own: Instruction, settling: Counter[int]) -> Iterator[Instruction]:
        """The buckets to which a segment was the last to contribute."""
        for number, bucket in enumerate(self.buckets):
            if number in settling and any(self.home[u] == own.number for u in bucket.units):
                settling[number] -= 1
                if not settling[number]:
                    yield Instruction("Settle", number)
