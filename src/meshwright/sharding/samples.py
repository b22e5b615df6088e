"""Batch-dim propagation (data parallelism): the sample split of each op group. Enters: the units of
a graph. Leaves: each with the split that cuts its samples, which micro-batches cut.

In the inputs of a model samples come first. From there they are followed: the split of a unit that
takes the tensors that it reads as they are cut, wherever a transposition has put them. What depends
on no input has no samples.

    input [n, t, d]    transpose -> [t, n, d]    linear -> [t, n, o]
    samples: dim 0     its split "dim1"          its split "row1", not the one named "sample"

What is made of parameters alone has no samples, but may be read as if it had: a class token that
is expanded to every sample. If it needs a gradient, its unit is cut as its reader cuts samples, so
that each micro-batch makes its part and has its part of the gradient (`_Constants`).

What is made of pending sums alone, as the sum of several losses, has no samples (`pending_sums`).
Where no split does, as when tokens of all samples are sorted, a unit is cut along what comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from meshwright.graph.counts import is_differentiable
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.partial_sums import pending_sums
from meshwright.sharding.states import WHOLE, State, needed
from meshwright.sharding.unit import SAMPLE, BoundaryTensor, OpGroup, states_inside

FIRST: State = 0
"""The dim of an input along which its samples lie."""


def with_samples(units: Sequence[OpGroup], graph: OperatorGraph) -> tuple[OpGroup, ...]:
    """The units of a graph, in an order of running, each with the split of its samples."""
    if graph.inputs and graph.inputs[0].spec.shape[:1] == (1,):
        return tuple(units)  # One sample cannot be cut, and its positions are none.
    states = dict[str, State]()
    following, fed = input_dependent_operators(graph), _fed(graph)
    constants = _Constants()
    splits: list[int | None] = []
    for number, unit in enumerate(units):
        split = None
        if following.isdisjoint(member.operator for member in unit.members):
            constants.add(number, unit, states_inside(unit, graph))
        else:
            pending = pending_sums(unit, graph, states)
            states |= pending
            if not pending:
                split = _split(unit, states, constants, _feeding(unit, graph, fed))
        splits.append(split)
        if split is not None:
            states |= {
                name: by_split[split] for name, by_split in states_inside(unit, graph).items()
            }
            constants.cut(unit, split, states)
    return tuple(
        msgspec.structs.replace(unit, samples=constants.chosen.get(number, split))
        for number, (unit, split) in enumerate(zip(units, splits, strict=True))
    )


class _Maker(NamedTuple):
    """A unit that depends on no input."""

    number: int
    unit: OpGroup
    made: Mapping[str, tuple[State, ...]]
    """Every tensor that it makes, with its state under each split."""
    free: tuple[int, ...]
    """The splits that read what has a gradient whole, or as it can be made."""


class _Constants:
    """Tensors that depend on no input, and how their makers can cut them."""

    def __init__(self) -> None:
        self._makers: dict[str, _Maker] = {}
        """By tensor."""
        self.chosen: dict[int, int] = {}
        """By the number of the unit, the split that readers with samples have made it take."""

    def add(self, number: int, unit: OpGroup, produced: Mapping[str, tuple[State, ...]]) -> None:
        """A unit that depends on no input."""
        free = tuple(
            number
            for number, split in enumerate(unit.splits)
            if _independent(split) and split_accepts_states(unit, number, {}, self.can)
        )
        self._makers |= dict.fromkeys(produced, _Maker(number, unit, produced, free))

    def can(self, boundary: BoundaryTensor, number: int) -> bool:
        """Whether what a port reads can be made as a split reads it."""
        return self._cutting(boundary, number) is not None

    def _cutting(self, boundary: BoundaryTensor, number: int) -> int | None:
        """The split of the maker with which a tensor comes as a split of its reader reads it."""
        maker = self._makers.get(boundary.tensor)
        if maker is None or boundary.forward[number] < 0:
            return None
        states = maker.made[boundary.tensor]
        return next((n for n in maker.free if states[n] == boundary.forward[number]), None)

    def cut(self, unit: OpGroup, split: int, states: dict[str, State]) -> None:
        """Have the makers of what a unit reads cut as its samples are, where gradients flow."""
        for boundary in unit.inputs:
            cutting = self._cutting(boundary, split)
            if boundary.backward is None or cutting is None:
                continue
            maker = self._makers[boundary.tensor]
            maker_split = self.chosen.setdefault(maker.number, cutting)
            states |= {name: by_split[maker_split] for name, by_split in maker.made.items()}
            self.cut(maker.unit, maker_split, states)


def split_accepts_states(
    unit: OpGroup,
    number: int,
    states: Mapping[str, State],
    can: Callable[[BoundaryTensor, int], bool] = lambda boundary, number: False,
) -> bool:
    """Whether a split reads all tensors as they are cut; from a whole one that needs no gradient,
    or that can be made as the split reads it, every split can read.
    """
    read = ((boundary, states.get(boundary.tensor, WHOLE)) for boundary in unit.inputs)
    return all(
        boundary.forward[number] == state
        or (state == WHOLE and (boundary.backward is None or can(boundary, number)))
        for boundary, state in read
    )


def first_sharded_input(unit: OpGroup, states: Mapping[str, State]) -> str | None:
    """A tensor that a unit reads and that is cut."""
    return next((p.tensor for p in unit.inputs if states.get(p.tensor, WHOLE) != WHOLE), None)


def _split(
    unit: OpGroup,
    states: Mapping[str, State],
    constants: _Constants,
    feeding: Sequence[tuple[State, ...]],
) -> int | None:
    cut = first_sharded_input(unit, states) is not None
    real = any(
        is_differentiable(spec.dtype) for member in unit.members for spec in member.call.outputs
    )
    if not real and not cut:  # As targets: whoever reads them takes what it needs.
        return None
    several = [n for n, split in enumerate(unit.splits) if max(unit.extents[split.name]) > 1]
    first = [n for n in several if SAMPLE in (unit.splits[n].role, unit.splits[n].name)]
    others = [n for n in several if n not in first and _independent(unit.splits[n])]
    candidates = (*first, *others) if cut or feeding else first
    fitting = [
        number for number in candidates if split_accepts_states(unit, number, states, constants.can)
    ]
    best = [number for number in fitting if all(needs[number] == FIRST for needs in feeding)]
    return next(iter((*best, *fitting, *first)), None)


def _independent(split: Split) -> bool:
    """Whether parts that run one after the other, as micro-batches do, make the whole."""
    return split.role != "reduction" and split.halo is None and not split.statistics


def _fed(graph: OperatorGraph) -> set[str]:
    """The inputs that have as many rows as the first of them has samples."""
    sizes = [tensor.spec.shape[:1] for tensor in graph.inputs]
    return {tensor.name for tensor in graph.inputs if tensor.spec.shape[:1] == sizes[0] != ()}


def _feeding(unit: OpGroup, graph: OperatorGraph, fed: set[str]) -> list[tuple[State, ...]]:
    """For each place where a unit reads an input with samples, how each split needs it."""
    return [
        tuple(WHOLE if split is None else needed(split, index) for split in member.splits)
        for member in unit.members
        for index, name in enumerate(graph.named[member.operator].inputs)
        if name in fed
    ]


def input_dependent_operators(graph: OperatorGraph) -> set[str]:
    """The operators that depend on an input: parameters and buffers alone have no samples."""
    reached = {tensor.name for tensor in graph.inputs}
    following: set[str] = set()
    for operator in graph.operators:
        if not reached.isdisjoint(name for name in operator.inputs if name is not None):
            reached |= {tensor.name for tensor in operator.outputs}
            following.add(operator.name)
    return following
