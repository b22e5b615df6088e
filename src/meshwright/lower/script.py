"""Instruction list of a training step: compute and communication of all devices in one order.
Enters: a plan. Leaves: a `Script`: what is done in a step, in one order for the whole machine, of
which every device does its own part.

    Run(s, m)      segment s computes micro-batch m          Reverse(s, m)   its backward pass
    Carry(d, m)    delivery d moves                          Bring(r, m)     return r moves
    Gather(b)      sharded parameters are put together       Settle(b)       gradients are summed
    Drop(b)        their memory is given back
A layer that runs again does so, with what is carried inside of it, before its backward pass.
Parameters that are sharded themselves (ZeRO 3) are gathered for each use of theirs (`prefetch`),
others that are updated in shards once a step. What is gathered is on its way until it is used.
Gradients are summed once a step, or after each micro-batch (`Options.sync_each`).

A script may be of two passes apart: of what some tensors need (a model's outputs) all micro-batches
go forward first, and backward once gradients of these tensors have come from elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from meshwright.lower.buckets import Bucket, buckets
from meshwright.lower.needed_for import ancestor_operators
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.prefetch import BucketUse, stays
from meshwright.lower.schedule_merge import ScheduleSlot, turns
from meshwright.lower.segments import Segment, segments
from meshwright.plan.plan import Plan

Kind = Literal["Run", "Reverse", "Carry", "Bring", "Gather", "Drop", "Settle"]

WHOLLY_SHARDED = 3
"""The ZeRO stage that shards parameters themselves."""


class Instruction(NamedTuple):
    """One thing that some devices do together."""

    kind: Kind
    number: int
    micro_batch: int = 0
    again: bool = False
    """Whether a layer runs for its backward pass."""


def _turning_point(instructions: Sequence[Instruction]) -> int:
    """Where the first backward pass begins."""
    positions = (
        n
        for n, instruction in enumerate(instructions)
        if instruction.again or instruction.kind == "Reverse"
    )
    return next(positions, len(instructions))


class Script:
    """What a step consists of."""

    def __init__(self, plan: Plan, *, returned: Sequence[str] = ()) -> None:
        self.plan, self.parallel = plan, ParallelGraph(plan)
        self.returned = tuple(returned)
        """The tensors for which passes are apart; none if the loss is all that is wanted."""
        self.segments: tuple[Segment, ...] = segments(self.parallel)
        self.buckets: tuple[Bucket, ...] = buckets(self.parallel)
        self.home = {u: n for n, segment in enumerate(self.segments) for u in segment.units}
        """The segment of each unit."""
        making = self._making()
        self._running = self._read_by(making)
        self.flows = tuple(
            number in making and any(plan.units[unit].flows for unit in segment.units)
            for number, segment in enumerate(self.segments)
        )
        """For each segment whether it has a backward pass."""
        self._index()
        self.instructions, self.turn = self._instructions()

    def summed_with(self, instruction: Instruction) -> int:
        """With the gradients of which micro-batch those of an instruction are summed over
        devices.
        """
        return instruction.micro_batch if self.plan.options.sync_each else 0

    def name_of(self, segment: int) -> str:
        """What a segment is called: as the first operator of its first unit."""
        return self.plan.units[self.segments[segment].units[0]].name

    def _making(self) -> frozenset[int]:
        """Segments that have a part in what is returned; all of them if nothing is."""
        if not self.returned:
            return frozenset(range(len(self.segments)))
        needed = ancestor_operators(self.plan.graph, self.returned)
        return frozenset(
            number
            for number, segment in enumerate(self.segments)
            if not needed.isdisjoint(
                member.operator
                for unit in segment.units
                for member in self.plan.units[unit].members
            )
        )

    def _read_by(self, making: frozenset[int]) -> frozenset[int]:
        """These segments, and those that they read from: a segment runs as a whole."""
        if not self.returned:
            return making
        parallel, reached = self.parallel, set(making)
        for number in reversed(range(len(self.segments))):
            if number in reached:
                for unit in self.segments[number].units:
                    for boundary in self.plan.units[unit].inputs:
                        tensor = parallel.made[boundary.tensor]
                        if not tensor.parameter:
                            reached.add(self.home[tensor.unit])
        return frozenset(reached)

    def _index(self) -> None:
        """What belongs to each segment, found once."""
        self._sent: dict[int, list[int]] = defaultdict(list)
        """The deliveries that a segment begins."""
        self._layers: dict[int, set[object]] = defaultdict(set)
        """The layers that read a delivery."""
        self._left: dict[int, dict[int, None]] = defaultdict(dict)
        """The returns to which a segment contributes."""
        self._kept: dict[int, list[int]] = defaultdict(list)
        """The buckets with a parameter that a segment reads."""
        parallel = self.parallel
        read = {
            port_reading.delivery
            for (u, _), port_reading in parallel.readings.items()
            if self.home[u] in self._running
        }
        for number, delivery in enumerate(parallel.deliveries):
            tensor = parallel.made[delivery.tensor]
            if delivery.steps and not tensor.parameter and number in read:
                self._sent[self.home[tensor.unit]].append(number)
        for (unit, _), reading in parallel.readings.items():
            segment = self.home[unit]
            self._layers[reading.delivery].add(self.segments[segment].layer)
            # A reader without gradients (of no_grad, say) shares a return with others, which must
            # not wait for it.
            if reading.return_ is not None and self.flows[segment]:
                self._left[segment][reading.return_] = None
        for number, bucket in enumerate(self.buckets):
            for segment in sorted({self.home[unit] for unit in bucket.units}):
                self._kept[segment].append(number)

    def _instructions(self) -> tuple[tuple[Instruction, ...], int]:
        """All of them, and how many of two passes apart are the forward pass."""
        sharded = [
            number
            for number, bucket in enumerate(self.buckets)
            if any(kept.shards for kept in bucket.parameters)
        ]
        if self.plan.options.zero == WHOLLY_SHARDED:
            every = list(self._computing())
            turn = _turning_point(every) if self.returned else 0
            forward, backward = (
                tuple(self._fetching(half, set(sharded))) for half in (every[:turn], every[turn:])
            )
            return (*forward, *backward), len(forward)
        gathers = (Instruction("Gather", number) for number in sharded)
        whole = (*gathers, *self._computing())
        return whole, _turning_point(whole)

    def _fetching(self, every: list[Instruction], sharded: set[int]) -> Iterator[Instruction]:
        """Instructions, and what puts the parameters together that they use."""
        begin: dict[int, list[int]] = defaultdict(list)
        end: dict[int, list[int]] = defaultdict(list)
        uses = [
            BucketUse(at, self.parallel.tasks[unit].place, buckets, layer)
            for at, command in enumerate(every)
            for unit, read, layer in self._used(command)
            if (buckets := tuple(number for number in read if number in sharded))
        ]
        for stay in stays(uses):
            begin[stay.first].append(stay.bucket)
            end[stay.last].append(stay.bucket)
        for at, instruction in enumerate(every):
            yield from (Instruction("Gather", number) for number in begin[at])
            yield instruction
            yield from (Instruction("Drop", number) for number in end[at])

    def _used(self, instruction: Instruction) -> Iterator[tuple[int, list[int], object]]:
        """A unit that shows where an instruction uses parameters, their buckets, and the layer
        that runs again with it.
        """
        if instruction.kind in ("Run", "Reverse"):
            segment, rerun = (
                self.segments[instruction.number],
                instruction.again or instruction.kind == "Reverse",
            )
            layer = (segment.layer, instruction.micro_batch) if segment.layer and rerun else None
            yield segment.units[0], self._kept[instruction.number], layer
        elif instruction.kind == "Carry":
            name = self.parallel.deliveries[instruction.number].tensor
            tensor = self.parallel.made[name]
            if tensor.parameter:
                every = self._kept[self.home[tensor.unit]]
                named = [
                    b for b in every if any(k.name == name for k in self.buckets[b].parameters)
                ]
                yield tensor.unit, named, None

    def _computing(self) -> Iterator[Instruction]:
        """All but what puts sharded parameters together."""
        waiting, settling = self._contributions(), self._backwards()
        yield from self._tied()
        slots = turns(self.plan)
        if self.returned:
            slots = tuple(sorted(slots, key=lambda slot: slot.pass_ == "backward"))
        for turn in slots:
            if turn.pass_ == "forward":
                for number in self._of_part(turn.part):
                    yield from self._run(number, turn.micro_batch, again=False)
                continue
            for instruction in self._backward(turn):
                yield instruction
                if instruction.kind == "Reverse":
                    yield from self._brought(instruction, waiting)
                    yield from self._settled(instruction, settling)

    def _of_part(self, part: int) -> list[int]:
        return [
            number
            for number, segment in enumerate(self.segments)
            if segment.part == part and number in self._running
        ]

    def _tied(self) -> Iterator[Instruction]:
        """Parameters that some reader needs otherwise than they lie."""
        for number, delivery in enumerate(self.parallel.deliveries):
            tensor = self.parallel.made[delivery.tensor]
            if delivery.steps and tensor.parameter:
                yield Instruction("Carry", number)

    def _run(self, number: int, micro: int, *, again: bool) -> Iterator[Instruction]:
        yield Instruction("Run", number, micro, again)
        layer = self.segments[number].layer
        for delivery in self._sent[number]:
            # A layer that runs again needs again what it reads itself.
            if not again or layer in self._layers[delivery]:
                yield Instruction("Carry", delivery, micro, again)

    def _backward(self, turn: ScheduleSlot) -> Iterator[Instruction]:
        reverse_order = reversed(self._of_part(turn.part))
        for layer, run in groupby(reverse_order, key=lambda number: self.segments[number].layer):
            numbers = list(run)
            if layer is not None:
                for number in reversed(numbers):
                    yield from self._run(number, turn.micro_batch, again=True)
            for number in numbers:
                if self.flows[number]:
                    yield Instruction("Reverse", number, turn.micro_batch)

    def _contributions(self) -> Counter[tuple[int, int]]:
        """For each return and micro-batch how many segments contribute."""
        return Counter(
            (number, micro)
            for returns in self._left.values()
            for number in returns
            for micro in range(self.plan.options.micro_batches)
        )

    def _brought(
        self, instruction: Instruction, waiting: Counter[tuple[int, int]]
    ) -> Iterator[Instruction]:
        """The returns to which a segment was the last to contribute."""
        for number in self._left[instruction.number]:
            gradient = self.parallel.returns[number]
            waiting[number, instruction.micro_batch] -= 1
            last = not waiting[number, instruction.micro_batch]
            if last and gradient.steps and not self.parallel.made[gradient.tensor].parameter:
                yield Instruction("Bring", number, instruction.micro_batch)

    def _backwards(self) -> Counter[tuple[int, int]]:
        """For each bucket, and each sum of it, for how many backward passes it waits."""
        return Counter(
            (bucket, self.summed_with(Instruction("Reverse", segment, micro)))
            for segment, numbers in self._kept.items()
            for bucket in numbers
            if self.flows[segment] and any(kept.returns for kept in self.buckets[bucket].parameters)
            for micro in range(self.plan.options.micro_batches)
        )

    def _settled(
        self, instruction: Instruction, settling: Counter[tuple[int, int]]
    ) -> Iterator[Instruction]:
        """The buckets to which a segment was the last to contribute."""
        micro = self.summed_with(instruction)
        for bucket in self._kept[instruction.number]:
            settling[bucket, micro] -= 1
            if not settling[bucket, micro]:
                yield Instruction("Settle", bucket, micro)
