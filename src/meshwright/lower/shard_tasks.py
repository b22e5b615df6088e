"""The shard of an op group that a device computes. Enters: a unit, its layout, a device's
coordinates, a micro-batch. Leaves: the piece of each member: the call, and the boxes that it reads
and makes.

Micro-batches cut samples first; then the layout's factors cut, each split by itself. Where two
splits cut the same dim, as samples and experts cut tokens, the outermost factor cuts first, so that
pieces are numbered as those of any tensor. Boxes are told within the whole tensors; `Samples` tells
which part of a tensor a micro-batch has. Whole numbers that are made of inputs alone (targets,
positions) are made whole for every micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from meshwright.base.integers import from_digits
from meshwright.graph.operator_graph import Call
from meshwright.graph.pieces import Box, bounds, named_split_of, piece_of, splits_of
from meshwright.lower.boxes import beyond, full
from meshwright.lower.device_mesh import Coordinates, MeshSizes, is_present
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.micro_batches import micro_batch_states
from meshwright.sharding.states import WHOLE, State, States, at
from meshwright.sharding.unit import Member, OpGroup


class MemberPiece(NamedTuple):
    """What a device runs of one operator."""

    operator: str
    call: Call
    inputs: tuple[Box | None, ...]
    outputs: tuple[Box, ...]
    silent: tuple[int, ...] = ()
    """Inputs that another part adds: here they count as nothing, but have their gradient."""
    summing: tuple[int, ...] = ()
    """Splits of the unit whose parts all-reduce statistics among themselves."""
    statistics: int = 0
    """Elements of each of these all-reduces."""
    rounds: tuple[int, int] = (0, 0)
    """How many there are, in the forward and the backward pass."""
    exchanging: tuple[int, ...] = ()
    """Splits of the unit whose parts send each other tokens."""


class SplitPart(NamedTuple):
    """One part of a split of the unit."""

    split: int
    part: int
    ways: int
    layout: bool
    """Whether a layout cuts so, and not micro-batches: the other parts are on other devices."""


class Samples(NamedTuple):
    """Along which split and dims micro-batches cut."""

    micro_batches: int
    split: tuple[int | None, ...]
    """[units] the number of the split, None where a unit has no samples."""
    dims: Mapping[str, State]
    """Of every tensor that units make, its state under micro-batches; of parameters WHOLE."""

    def frame(self, name: str, shape: tuple[int, ...], micro: int) -> Box:
        """The part of a tensor that a micro-batch has."""
        box, dim = full(shape), self.dims.get(name, WHOLE)
        if dim < 0:
            return box
        each = shape[dim] // self.micro_batches
        return (*box[:dim], (micro * each, (micro + 1) * each), *box[dim + 1 :])


class Tasks:
    """The pieces of one unit under its layout."""

    def __init__(
        self, unit: OpGroup, layout: Layout, machine: MeshSizes, samples: Samples, unit_number: int
    ) -> None:
        self.unit, self.layout, self.machine = unit, layout, machine
        self._micro_split, self._micro_batches = samples.split[unit_number], samples.micro_batches
        self._known: dict[tuple[SplitPart, ...], tuple[MemberPiece, ...]] = {}
        self._cutting = {
            number: tuple(f for f, role in enumerate(layout.roles) if role == split.name)
            for number, split in enumerate(unit.splits)
            if split.name in layout.roles
        }

    @cached_property
    def place(self) -> States:
        """As states: at which coordinates it sits, WHOLE where at all."""
        return tuple(
            WHOLE if coordinate is None else at(coordinate)
            for coordinate in self.layout.coordinates()
        )

    def works(self, coordinates: Coordinates) -> bool:
        """Whether the device at some coordinates works for the unit."""
        return is_present(self.place, coordinates)

    def parts(self, coordinates: Coordinates) -> dict[int, tuple[int, int]]:
        """For each split that is cut which part is the device's, and of how many."""
        sizes = self.machine.sizes
        return {
            number: (
                from_digits([coordinates[f] for f in cut_factors], [sizes[f] for f in cut_factors]),
                math.prod(sizes[f] for f in cut_factors),
            )
            for number, cut_factors in self._cutting.items()
        }

    def _cuts(self, coordinates: Coordinates) -> Iterator[SplitPart]:
        for number, part in self.parts(coordinates).items():
            yield SplitPart(number, *part, True)

    def _in_turn(self, coordinates: Coordinates) -> Iterator[SplitPart]:
        """One cut for each factor, the outermost first."""
        numbers = {split.name: number for number, split in enumerate(self.unit.splits)}
        for factor, role in enumerate(self.layout.roles):
            if role in numbers:
                ways = self.machine.sizes[factor]
                yield SplitPart(numbers[role], coordinates[factor], ways, True)

    @cached_property
    def _shares_a_dim(self) -> bool:
        """Whether tokens may be cut by two splits."""
        return any(self.unit.splits[number].exchanged for number in self._cutting)

    def along(self, splits: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The factors that cut some splits, and all others at all of whose coordinates it works."""
        inside = tuple(sorted(f for split in splits for f in self._cutting[split]))
        beside = (f for f, state in enumerate(self.place) if state == WHOLE and f not in inside)
        return inside, tuple(beside)

    def pieces(self, coordinates: Coordinates, micro: int) -> tuple[MemberPiece, ...]:
        """What the device at some coordinates runs of each member."""
        cuts = tuple(self._in_turn(coordinates) if self._shares_a_dim else self._cuts(coordinates))
        if self._micro_split is not None:
            cuts = (SplitPart(self._micro_split, micro, self._micro_batches, False), *cuts)
        if cuts not in self._known:
            self._known[cuts] = tuple(_piece(member, cuts) for member in self.unit.members)
        return self._known[cuts]


def _piece(member: Member, cuts: tuple[SplitPart, ...]) -> MemberPiece:
    """One split after the other, each on the piece that the ones before left."""
    call = member.call
    inputs = tuple(None if spec is None else full(spec.shape) for spec in call.inputs)
    outputs = tuple(full(spec.shape) for spec in call.outputs)
    silent: set[int] = set()
    summing: dict[int, str] = {}
    exchanging: dict[int, None] = {}
    for cut in cuts:
        split = member.splits[cut.split]
        if split is None or cut.ways == 1:
            continue
        current = next(s for s in splits_of(call) if s.name == split.name)
        start, stop = bounds(current.extent, cut.ways)[cut.part]
        piece = piece_of(call, current, start, stop)
        adding = [i for i in current.once if start and inputs[i] is not None]
        silent.update(adding)
        inputs = tuple(
            outer
            if index in adding
            else None
            if box is None or outer is None
            else beyond(box, outer)
            for index, (box, outer) in enumerate(zip(piece.inputs, inputs, strict=True))
        )
        outputs = tuple(map(beyond, piece.outputs, outputs))
        call = _with_inputs(piece.call, call, adding)
        if current.statistics and cut.layout:
            summing[cut.split] = current.name
        if current.exchanged and cut.layout:
            exchanging[cut.split] = None
    summed_splits = [named_split_of(call, name) for name in summing.values()]
    return MemberPiece(
        member.operator,
        call,
        inputs,
        outputs,
        tuple(sorted(silent)),
        tuple(summing),
        max((split.statistics for split in summed_splits), default=0),
        summed_splits[0].rounds if summed_splits else (0, 0),
        tuple(exchanging),
    )


def _with_inputs(piece: Call, whole: Call, kept: list[int]) -> Call:
    """A piece's call with some inputs of the call that it is a piece of."""
    if not kept:
        return piece
    inputs = tuple(whole.inputs[i] if i in kept else spec for i, spec in enumerate(piece.inputs))
    return msgspec.structs.replace(piece, inputs=inputs)


def samples_of(plan: Plan) -> Samples:
    """How micro-batches cut a plan's units."""
    count = plan.options.micro_batches
    splits = tuple(unit.samples if count > 1 else None for unit in plan.units)
    return Samples(count, splits, micro_batch_states(plan.graph, count))
