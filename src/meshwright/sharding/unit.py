"""The op group: an operator with the followers that share its layout. Enters: nothing. Leaves:
`OpGroup`, its members and ports.

    unit                 layout of the anchor                     = layout of the unit
    member m, split s    `Member.splits[s]`: the split of m that s becomes, None if m runs whole
    port                 a tensor that enters or leaves: its state under each split, and that of
                         its gradient
How units are formed is told by `units`, where their samples lie by `samples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec

from meshwright.graph.family import Split, Wanted
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph
from meshwright.graph.pieces import largest_piece, splits_of
from meshwright.sharding.layout import divides
from meshwright.sharding.states import WHOLE, State, made

SAMPLE = "sample"
"""The role and the name of splits that cut what comes first in a tensor, as a rule samples."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of a unit."""

    operator: str
    call: Call
    wanted: Wanted
    """For each input whether its gradient is made."""
    splits: tuple[Split | None, ...]
    """What each split of the unit becomes."""

    def piece(self, degrees: Mapping[int, int]) -> Call:
        """What a device runs if the unit's splits, by number, are cut so many ways."""
        call = self.call
        for number, degree in degrees.items():
            split = self.splits[number]
            if split is not None and degree > 1:
                call_split = next(s for s in splits_of(call) if s.name == split.name)
                call = largest_piece(call, call_split, degree)
        return call


class SharedStatistics(NamedTuple):
    """What the parts of a split all-reduce among themselves inside an operator."""

    bytes: int
    """Of one all-reduce, of the operator that nothing else cuts."""
    forward: int
    """How many all-reduces in the forward pass."""
    backward: int
    cut_by: tuple[int, ...]
    """The other splits that cut them too."""


class BoundaryTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that enters or leaves a unit, with its states under each split of the unit."""

    tensor: str
    bytes: int
    forward: tuple[State, ...]
    """As an input: how it is needed. As an output: how it is made."""
    backward: tuple[State, ...] | None
    """The same for its gradient, the other way round; None if there is none."""
    halo: tuple[int, ...] = ()
    """For each split the bytes of the rows that neighbours read of each other, at one cut."""
    statistics: tuple[SharedStatistics | None, ...] = ()
    """For each split what its parts all-reduce among themselves."""
    exchanged: tuple[int, ...] = ()
    """For each split the bytes that its parts send each other by two AllToAlls, in both passes."""


class OpGroup(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Operators that share a layout."""

    name: str
    """That of the anchor."""
    splits: tuple[Split, ...]
    """Those of the anchor."""
    members: tuple[Member, ...]
    inputs: tuple[BoundaryTensor, ...]
    outputs: tuple[BoundaryTensor, ...]
    samples: int | None = None
    """The split that cuts the samples of a step, by number; None if it has none."""

    @cached_property
    def extents(self) -> dict[str, tuple[int, ...]]:
        """For each split how many units its members have, to be cut together."""
        return {
            split.name: tuple(
                sorted({cut.extent for m in self.members if (cut := m.splits[number]) is not None})
            )
            for number, split in enumerate(self.splits)
        }

    @cached_property
    def flows(self) -> bool:
        """Whether it has a backward pass."""
        return any(any(member.wanted) for member in self.members)

    def cuttable(self, number: int, degree: int) -> bool:
        """Whether a split can be cut so many ways."""
        return divides(self.extents[self.splits[number].name], degree)

    @property
    def sample_extents(self) -> tuple[int, ...]:
        """How many samples its members have, to be cut together; nothing if it has none."""
        return () if self.samples is None else self.extents[self.splits[self.samples].name]

    def micro_ways(self, number: int, micro_batches: int) -> int:
        """How many ways micro-batches cut a split: samples, if they can be cut so."""
        cut = number == self.samples and self.cuttable(number, micro_batches)
        return micro_batches if cut else 1


def states_inside(unit: OpGroup, graph: OperatorGraph) -> dict[str, tuple[State, ...]]:
    """Every tensor that a unit makes, with its states under each split."""
    states: dict[str, tuple[State, ...]] = {}
    for member in unit.members:
        states |= made_by(graph.named[member.operator], member.splits, states)
    return states


def made_by(
    operator: Operator,
    splits: tuple[Split | None, ...],
    inside: Mapping[str, tuple[State, ...]],
) -> dict[str, tuple[State, ...]]:
    """What an operator of a unit makes, given what is made inside before it."""
    passed = [inside[name] for name in filter(None, operator.inputs) if name in inside]
    return {
        tensor.name: tuple(
            # A view of a pending sum is a pending sum.
            (passed[0][number] if passed else WHOLE) if split is None else made(split, index)
            for number, split in enumerate(splits)
        )
        for index, tensor in enumerate(operator.outputs)
    }
