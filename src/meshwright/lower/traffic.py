"""Communication volume of a device. Enters: a script and a device. Leaves: whole bytes, exactly
what `run` sends on gloo or NCCL's rings.

Each instruction is followed by what it moves: transfers by their steps (`chains` for collectives,
boxes for exchanges, `collectives.recipe` for programs), normalisations by the two sums of each
pass, routed experts by the tokens that equal loads send, gradient reduction and gathering by rows
of shards. The one number of the loss that everybody gets is not counted. Nothing here knows of
links or time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import assert_never

from meshwright.cost.collective import Collective
from meshwright.graph.operator_graph import ITEM_BYTES
from meshwright.lower.boxes import elements, shape_of
from meshwright.lower.buckets import Bucket, BucketParameter
from meshwright.lower.chains import DeviceChains, sent, sent_bytes_of_tensor
from meshwright.lower.gradient_sums import GradientSum, alone, gathered, sums
from meshwright.lower.reduction_recipes import Numbers, Reductions
from meshwright.lower.script import Instruction, Kind, Script
from meshwright.lower.shard_tasks import Tasks
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.lower.tokens import all_to_all_bytes
from meshwright.lower.transfers import Exchange, GroupCollective, Step, sent_boxes
from meshwright.sharding.units import STATISTIC


def sent_bytes_of(script: Script, device: int) -> int:
    """What a device sends in a step of training."""
    return sum(sent_bytes_by_kind(script, device).values())


def sent_bytes_by_kind(script: Script, device: int) -> Mapping[Kind, int]:
    """What a device sends in a step of training, by kind of instruction.

    >>> from meshwright.cluster.cluster import Cluster
    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.plan.plan import Plan
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... operator s: loss: float32[] = mean(y)
    ... output loss
    ... loss loss''')
    >>> plan = Plan(origin="by hand", graph=graph, cluster=Cluster.named("laptop"),
    ...             layouts=(("y", "sample sample"), ("s", "sample sample")))
    >>> [dict(sent_bytes_by_kind(Script(plan), device)) for device in (0, 3)]
    [{'Settle': 144}, {'Settle': 144}]
    """
    traffic = _Traffic(script, device)
    total: Counter[Kind] = Counter()
    for instruction in script.instructions:
        total[instruction.kind] += traffic.sent(instruction)
    return {kind: count for kind, count in total.items() if count}


class _Traffic:
    """What one device sends."""

    def __init__(self, script: Script, device: int) -> None:
        self._script, self._parallel, self._device = script, script.parallel, device
        self._here = script.parallel.machine.coordinates(device)
        self._reductions = Reductions(script.plan)
        self._chains = DeviceChains(script.plan, device)
        self._known = cache(self._of)

    def sent(self, instruction: Instruction) -> int:
        """For one instruction; micro-batches do not differ."""
        return self._known(instruction.kind, instruction.number)

    def _of(self, kind: Kind, number: int) -> int:
        parallel = self._parallel
        match kind:
            case "Run":
                return sum(self._inside(number, backward=False))
            case "Reverse":
                return sum(self._inside(number, backward=True))
            case "Carry":
                delivery = parallel.deliveries[number]
                return self._transfer(delivery.steps, self._item(delivery.tensor))
            case "Bring":
                gradient = parallel.returns[number]
                return self._transfer(gradient.steps, self._item(gradient.tensor))
            case "Drop":
                return 0
            case "Gather":
                return self._gathered(self._script.buckets[number])
            case "Settle":
                return self._settled(self._script.buckets[number])
            case _:
                assert_never(kind)

    def _item(self, tensor: str) -> int:
        return ITEM_BYTES[self._parallel.plan.graph.specs[tensor].dtype]

    def _transfer(self, steps: Sequence[Step], item: int) -> int:
        return sum(self._step(step, item) for step in steps)

    def _step(self, step: Step, item: int) -> int:
        if isinstance(step, Exchange):
            if not step.before.holds(self._here):
                return 0
            return sum(elements(move.box) * item for move in sent_boxes(step, self._here))
        if not (step.before.holds(self._here) or step.after.holds(self._here)):
            return 0
        return self._together(step, item)

    def _together(self, step: GroupCollective, item: int) -> int:
        match step.kind:
            case Collective.ALL_REDUCE:
                count = elements(step.before.box(self._here))
                return self._summed(step.inside, step.beside, count * item, count, item)
            case Collective.REDUCE_SCATTER:
                whole = elements(step.before.box(self._here)) * item
                links = self._chains.scattered(step.inside, whole)
                return sent(step.kind, links, self._sizes(step, step.after, item))
            case Collective.ALL_GATHER:
                sizes = self._sizes(step, step.before, item)
                return sent(step.kind, self._chains.gathered(step.inside, max(sizes)), sizes)
            case Collective.REDUCE:
                return self._rooted(step, step.after, step.before, item)
            case Collective.BROADCAST:
                return self._rooted(step, step.before, step.after, item)
            case _:
                assert_never(step.kind)

    def _sizes(self, step: GroupCollective, lying: TensorPlacement, item: int) -> list[int]:
        """Bytes that each member holds."""
        members = self._parallel.machine.along(step.inside, self._here)
        return [elements(lying.box(member)) * item for member in members]

    def _rooted(
        self, step: GroupCollective, end: TensorPlacement, everywhere: TensorPlacement, item: int
    ) -> int:
        """What ends, or begins, at the one member that holds `end`."""
        machine = self._parallel.machine
        root = next(
            member for member in machine.along(step.inside, self._here) if end.holds(member)
        )
        whole = elements(everywhere.box(self._here)) * item
        links = self._chains.rooted(step.kind, step.inside, whole, machine.device(root))
        return sent_bytes_of_tensor(step.kind, links, whole)

    def _summed(self, inside: Numbers, beside: Numbers, size: int, count: int, item: int) -> int:
        """By the program that the plan has for so many bytes."""
        return self._reductions.recipe(inside, beside, size, self._device).sent(count, item)

    def _inside(self, number: int, *, backward: bool) -> Iterator[int]:
        """What operators of a segment tell their other parts in one pass."""
        parallel = self._parallel
        for unit in self._script.segments[number].units:
            tasks, group = parallel.tasks[unit], parallel.plan.units[unit]
            if not tasks.works(self._here):
                continue
            for place, piece in enumerate(tasks.pieces(self._here, 0)):
                if piece.summing and (group.members[place].wanted[0] or not backward):
                    yield from self._statistics(tasks, place, backward=backward)
                if piece.exchanging:
                    yield self._tokens(tasks, place, backward=backward)

    def _statistics(self, tasks: Tasks, place: int, *, backward: bool) -> Iterator[int]:
        """What an operator all-reduces inside it in one pass."""
        piece, spec = tasks.pieces(self._here, 0)[place], tasks.unit.members[place].call.inputs[0]
        assert spec is not None
        item = max(STATISTIC, ITEM_BYTES[spec.dtype])
        count, group = piece.statistics, tasks.along(piece.summing)
        for _ in range(piece.rounds[backward]):
            yield self._summed(*group, STATISTIC * count, count, item)

    def _tokens(self, tasks: Tasks, place: int, *, backward: bool) -> int:
        """What goes to the experts of others, and what goes back to their tokens."""
        inside, _ = tasks.along(tasks.pieces(self._here, 0)[place].exchanging)
        members = tuple(self._parallel.machine.along(inside, self._here))
        calls = [tasks.pieces(member, 0)[place].call for member in members]
        wanted = tasks.unit.members[place].wanted
        return all_to_all_bytes(calls, members.index(self._here), wanted if backward else None)

    def _elements(self, parameter: str) -> int:
        return math.prod(self._shape(parameter))

    def _shape(self, parameter: str) -> tuple[int, ...]:
        return shape_of(self._parallel.made[parameter].forward.box(self._here))

    def _gathered(self, bucket: Bucket) -> int:
        total = 0
        for alike in gathered(self._parallel, bucket, self._here):
            sizes = self._shards(alike)
            links = self._chains.gathered(alike[0].shards, sizes[0])
            total += sent(Collective.ALL_GATHER, links, sizes)
        return total

    def _settled(self, bucket: Bucket) -> int:
        summed = sum(self._row(total) for total in sums(self._parallel, bucket, self._here))
        return summed + sum(
            self._transfer(self._parallel.returns[number].steps, self._item(kept.name))
            for kept in bucket.parameters
            for number in alone(self._parallel, kept)
        )

    def _row(self, total: GradientSum) -> int:
        names = [kept.name for kept in total.parameters]
        count, item = sum(map(self._elements, names)), self._item(names[0])
        if total.step is None:
            links = self._chains.scattered(total.parameters[0].shards, count * item)
            sizes = self._shards(total.parameters)
            between = self._between_copies(total, sizes, item) if total.copies else 0
            return sent(Collective.REDUCE_SCATTER, links, sizes) + between
        return self._summed(total.step.inside, total.step.beside, count * item, count, item)

    def _between_copies(self, total: GradientSum, sizes: Sequence[int], item: int) -> int:
        """For the sum of a device's shard over those that have a copy of it."""
        assert total.copies is not None
        members = list(self._parallel.machine.along(total.parameters[0].shards, self._here))
        size = sizes[members.index(self._here)]
        return self._summed(*total.copies, max(sizes), size // item, item) if size else 0

    def _shards(self, alike: Sequence[BucketParameter]) -> list[int]:
        """Bytes that each member has of a row of sharded pieces."""
        machine, item = self._parallel.machine, self._item(alike[0].name)
        shards = (
            [last - first for first, last in kept.stretches(machine, self._shape(kept.name))]
            for kept in alike
        )
        return [sum(row) * item for row in zip(*shards, strict=True)]
