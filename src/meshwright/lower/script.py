"""A plan as a list of instructions. Enters: a plan. Leaves: a `Script`: what is done in a step, in
one order for the whole machine, of which every device does its own part.

    Run(s, m)      segment s computes micro-batch m          Reverse(s, m)   its backward pass
    Carry(d, m)    delivery d moves                          Bring(r, m)     return r moves
    Gather(b)      sharded parameters are put together       Settle(b)       gradients are summed
    Drop(b)        their memory is given back
A layer that runs again does so, with what is carried inside of it, before its backward pass.
Parameters that are sharded themselves (ZeRO 3) are gathered for each use of theirs (`prefetch`),
others that are updated in shards once a step. What is gathered is on its way until it is used.

A script may be of two passes apart: of what some tensors need (a model's outputs) all micro-batches
go forward first, and backward once gradients of these tensors have come from elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from meshwright.lower.buckets import Bucket, buckets
from meshwright.lower.needed_for import operators_for
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.prefetch import BucketUse, stays
from meshwright.lower.schedule_merge import ScheduleSlot, turns
from meshwright.lower.segments import Segment, segments
from meshwright.plan.model import Plan

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
    back = (n for n, own in enumerate(instructions) if own.again or own.kind == "Reverse")
    return next(back, len(instructions))


class Script:
    """What a step consists of."""

    def __init__(self, plan: Plan, *, returned: Sequence[str] = ()) -> None:
        self.plan, self.parallel = plan, ParallelGraph(plan)
        self.returned = tuple(returned)
        """The tensors for which passes are apart; none if the loss is all that is wanted."""
        self.segments: tuple[Segment, ...] = segments(self.parallel)
        self.buckets: tuple[Bucket, ...] = buckets(self.parallel)
        self.home = {u: n for n, own in enumerate(self.segments) for u in own.units}
        """The segment of each unit."""
        making = self._making()
        self._running = self._read_by(making)
        self.flows = tuple(
            number in making and any(plan.units[unit].flows for unit in own.units)
            for number, own in enumerate(self.segments)
        )
        """For each segment whether it has a backward pass."""
        self._index()
        self.instructions, self.turn = self._instructions()

    def name_of(self, segment: int) -> str:
        """What a segment is called: as the first operator of its first unit."""
        return self.plan.units[self.segments[segment].units[0]].name

    def _making(self) -> frozenset[int]:
        """Segments that have a part in what is returned; all of them if nothing is."""
        if not self.returned:
            return frozenset(range(len(self.segments)))
        needed = operators_for(self.plan.graph, self.returned)
        return frozenset(
            number
            for number, own in enumerate(self.segments)
            if not needed.isdisjoint(
                member.operator for unit in own.units for member in self.plan.units[unit].members
            )
        )

    def _read_by(self, making: frozenset[int]) -> frozenset[int]:
        """These segments, and those that they read from: a segment runs as a whole."""
        if not self.returned:
            return making
        parallel, found = self.parallel, set(making)
        for number in reversed(range(len(self.segments))):
            if number in found:
                for unit in self.segments[number].units:
                    for port in self.plan.units[unit].inputs:
                        made = parallel.made[port.tensor]
                        if not made.parameter:
                            found.add(self.home[made.unit])
        return frozenset(found)

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
            own.delivery
            for (u, _), own in parallel.readings.items()
            if self.home[u] in self._running
        }
        for number, own in enumerate(parallel.deliveries):
            made = parallel.made[own.tensor]
            if own.steps and not made.parameter and number in read:
                self._sent[self.home[made.unit]].append(number)
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
            for number, own in enumerate(self.buckets)
            if any(kept.shards for kept in own.parameters)
        ]
        if self.plan.options.zero == WHOLLY_SHARDED:
            every = list(self._computing())
            turn = _turning_point(every) if self.returned else 0
            there, back = (
                tuple(self._fetching(own, set(sharded))) for own in (every[:turn], every[turn:])
            )
            return (*there, *back), len(there)
        gathers = (Instruction("Gather", number) for number in sharded)
        whole = (*gathers, *self._computing())
        return whole, _turning_point(whole)

    def _fetching(self, every: list[Instruction], sharded: set[int]) -> Iterator[Instruction]:
        """Instructions, and what puts the parameters together that they use."""
        begin: dict[int, list[int]] = defaultdict(list)
        end: dict[int, list[int]] = defaultdict(list)
        uses = [
            BucketUse(at, self.parallel.tasks[unit].place, buckets, layer)
            for at, own in enumerate(every)
            for unit, read, layer in self._used(own)
            if (buckets := tuple(number for number in read if number in sharded))
        ]
        for own in stays(uses):
            begin[own.first].append(own.bucket)
            end[own.last].append(own.bucket)
        for at, instruction in enumerate(every):
            yield from (Instruction("Gather", number) for number in begin[at])
            yield instruction
            yield from (Instruction("Drop", number) for number in end[at])

    def _used(self, own: Instruction) -> Iterator[tuple[int, list[int], object]]:
        """A unit that shows where an instruction uses parameters, their buckets, and the layer
        that runs again with it.
        """
        if own.kind in ("Run", "Reverse"):
            segment, rerun = self.segments[own.number], own.again or own.kind == "Reverse"
            layer = (segment.layer, own.micro_batch) if segment.layer and rerun else None
            yield segment.units[0], self._kept[own.number], layer
        elif own.kind == "Carry":
            name = self.parallel.deliveries[own.number].tensor
            made = self.parallel.made[name]
            if made.parameter:
                every = self._kept[self.home[made.unit]]
                named = [
                    b for b in every if any(k.name == name for k in self.buckets[b].parameters)
                ]
                yield made.unit, named, None

    def _computing(self) -> Iterator[Instruction]:
        """All but what puts sharded parameters together."""
        waiting, settling = self._contributions(), self._backwards()
        yield from self._tied()
        slots = turns(self.plan)
        if self.returned:
            slots = tuple(sorted(slots, key=lambda own: own.pass_ == "backward"))
        for turn in slots:
            if turn.pass_ == "forward":
                for number in self._of_part(turn.part):
                    yield from self._run(number, turn.micro_batch, again=False)
                continue
            for own in self._backward(turn):
                yield own
                if own.kind == "Reverse":
                    yield from self._brought(own, waiting)
                    yield from self._settled(own, settling)

    def _of_part(self, part: int) -> list[int]:
        return [
            number
            for number, own in enumerate(self.segments)
            if own.part == part and number in self._running
        ]

    def _tied(self) -> Iterator[Instruction]:
        """Parameters that some reader needs otherwise than they lie."""
        for number, own in enumerate(self.parallel.deliveries):
            made = self.parallel.made[own.tensor]
            if own.steps and made.parameter:
                yield Instruction("Carry", number)

    def _run(self, number: int, micro: int, *, again: bool) -> Iterator[Instruction]:
        yield Instruction("Run", number, micro, again)
        layer = self.segments[number].layer
        for delivery in self._sent[number]:
            # A layer that runs again needs again what it reads itself.
            if not again or layer in self._layers[delivery]:
                yield Instruction("Carry", delivery, micro, again)

    def _backward(self, turn: ScheduleSlot) -> Iterator[Instruction]:
        own = reversed(self._of_part(turn.part))
        for layer, run in groupby(own, key=lambda number: self.segments[number].layer):
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
            for own in self._left.values()
            for number in own
            for micro in range(self.plan.options.micro_batches)
        )

    def _brought(
        self, own: Instruction, waiting: Counter[tuple[int, int]]
    ) -> Iterator[Instruction]:
        """The returns to which a segment was the last to contribute."""
        for number in self._left[own.number]:
            back = self.parallel.returns[number]
            waiting[number, own.micro_batch] -= 1
            last = not waiting[number, own.micro_batch]
            if last and back.steps and not self.parallel.made[back.tensor].parameter:
                yield Instruction("Bring", number, own.micro_batch)

    def _backwards(self) -> Counter[int]:
        """For each bucket for how many backward passes it waits."""
        return Counter(
            bucket
            for segment, own in self._kept.items()
            for bucket in own
            if self.flows[segment] and any(kept.returns for kept in self.buckets[bucket].parameters)
            for _ in range(self.plan.options.micro_batches)
        )

    def _settled(self, own: Instruction, settling: Counter[int]) -> Iterator[Instruction]:
        """The buckets to which a segment was the last to contribute."""
        for bucket in self._kept[own.number]:
            settling[bucket] -= 1
            if not settling[bucket]:
                yield Instruction("Settle", bucket)
