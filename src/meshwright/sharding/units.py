"""Op group formation: each root operator with the followers that can share its layout. Enters: a
graph. Leaves: `OpGroup`s, in an order of running.

A unit is an operator, its anchor, and the cheap ones after it that can follow wherever it goes: for
each of the anchor's splits the follower has one that takes the pieces as they come, so that nothing
moves inside a unit, whatever its layout. Products, convolutions, whatever exchanges halos,
statistics or tokens, and whatever would need a pending sum begin units of their own. So does what
depends on the model's inputs after an anchor that does not, and what has a gradient after one that
has none: samples are in no split of a slice of a table of positions, and nothing is in a range of
numbers by which rows of that table are looked up. For the same reason what repeats a constant, as
a class token for every sample, begins one.

What a model without a loss returns is never left as a pending sum: a unit that makes an output has
no split that sums, so that every output ends whole or cut along its dims. A loss may be one.
Nothing here knows of machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import msgspec

from meshwright.base.once import once
from meshwright.graph.counts import input_needs_grad, tensors_requiring_grad
from meshwright.graph.families import family_of
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import ITEM_BYTES, Call, Operator, OperatorGraph
from meshwright.graph.pieces import largest_piece, named_split_of, splits_of
from meshwright.sharding.samples import input_dependent_operators, with_samples
from meshwright.sharding.states import (
    PARTIAL,
    WHOLE,
    State,
    gradient_made,
    gradient_needed,
    needed,
)
from meshwright.sharding.unit import BoundaryTensor, Member, OpGroup, SharedStatistics, made_by

STATISTIC = 4
"""Bytes of a number that parts of an operator sum inside it: they do so in float32."""


@once
def units(graph: OperatorGraph) -> tuple[OpGroup, ...]:
    """The units of a graph; every operator is in one.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... operator z: z: float32[n=8, o=6] = relu(y)
    ... operator e: e: float32[n=8, o=6] = exp(z)
    ... output e''')
    >>> [[member.operator for member in unit.members] for unit in units(graph)]
    [['y'], ['z', 'e']]
    """
    forming: list[_Forming] = []
    home: dict[str, int] = {}
    needing, following = tensors_requiring_grad(graph), input_dependent_operators(graph)
    for operator in graph.operators:
        producers = [home[name] for name in operator.inputs if name in home]
        number = max(producers, default=None) if operator.inputs else None
        if number is None or not forming[number].take(operator, graph, needing, following):
            number = len(forming)
            forming.append(_Forming(operator, graph, needing))
        home.update((tensor.name, number) for tensor in operator.outputs)
    fixed = {tensor.name for tensor in (*graph.inputs, *graph.buffers)}
    return with_samples([unit.finished(graph, needing, fixed) for unit in forming], graph)


@once
def sharding_classes(graph: OperatorGraph) -> tuple[int, ...]:
    """For each unit a number; units with the same one can be cut in the same ways."""
    numbers: dict[object, int] = {}
    return tuple(
        numbers.setdefault(
            (
                tuple((split.name, split.role) for split in unit.splits),
                tuple(unit.extents.items()),
                unit.samples,
            ),
            len(numbers),
        )
        for unit in units(graph)
    )


class _Forming:
    """A unit to which operators may still be added."""

    def __init__(self, anchor: Operator, graph: OperatorGraph, needing: frozenset[str]) -> None:
        call = graph.call(anchor)
        self.name, self.splits = anchor.name, splits_of(call)
        self.operators = [anchor]
        self.members = [_member(anchor, call, needing, self.splits)]
        self.states: dict[str, tuple[State, ...]] = {}
        """Of every tensor made inside, under each split."""
        self._remember(anchor, self.splits)

    def take(
        self,
        operator: Operator,
        graph: OperatorGraph,
        needing: frozenset[str],
        following: Set[str],
    ) -> bool:
        """Add an operator if it can follow under every split."""
        call, anchor = graph.call(operator), self.operators[0]
        # Where two splits cut tokens, a follower could be cut more often than it has samples.
        if family_of(call).products or any(split.exchanged for split in self.splits):
            return False
        if anchor.name not in following and (operator.name in following or _repeats(call)):
            return False
        if _flows(operator, needing) and not _flows(anchor, needing):
            return False
        followed: list[Split | None] = []
        for number in range(len(self.splits)):
            follower = self._follower(operator, call, number)
            if follower is _REFUSED:
                return False
            followed.append(follower)
        self.operators.append(operator)
        self.members.append(_member(operator, call, needing, tuple(followed)))
        self._remember(operator, tuple(followed))
        return True

    def _follower(self, operator: Operator, call: Call, number: int) -> Split | None:
        """The split that continues one of the unit's, None for running whole, or _REFUSED."""
        inside = {
            index: self.states[name][number]
            for index, name in enumerate(operator.inputs)
            if name is not None and name in self.states
        }
        kinds = set(inside.values())
        if kinds == {WHOLE} or (kinds == {PARTIAL} and family_of(operator).view):
            return None
        if kinds & {WHOLE, PARTIAL}:
            return _REFUSED
        for split in splits_of(call):
            alike = all(split.inputs[index] == state for index, state in inside.items())
            if alike and split.halo is None and not (split.statistics or split.exchanged):
                return split
        return _REFUSED

    def _remember(self, operator: Operator, splits: tuple[Split | None, ...]) -> None:
        self.states |= made_by(operator, splits, self.states)

    def finished(self, graph: OperatorGraph, needing: Set[str], fixed: Set[str]) -> OpGroup:
        """The unit with its ports; what is given and not trained is none."""
        self._keep_outputs_whole(graph)
        return OpGroup(
            name=self.name,
            splits=self.splits,
            members=tuple(self.members),
            inputs=tuple(self._inputs(graph, needing, fixed)),
            outputs=tuple(self._outputs(graph, needing)),
        )

    def _keep_outputs_whole(self, graph: OperatorGraph) -> None:
        """Leave out splits that would hand the user a pending sum.

        Of a loss the runtime adds up the terms itself.
        """
        returned = [] if graph.loss else [self.states[n] for n in graph.outputs if n in self.states]
        kept = [
            number
            for number in range(len(self.splits))
            if all(states[number] != PARTIAL for states in returned)
        ]
        if len(kept) < len(self.splits):
            self.splits = tuple(self.splits[n] for n in kept)
            self.members = [
                msgspec.structs.replace(member, splits=tuple(member.splits[n] for n in kept))
                for member in self.members
            ]
            self.states = {
                name: tuple(states[n] for n in kept) for name, states in self.states.items()
            }

    def _inputs(
        self, graph: OperatorGraph, needing: Set[str], fixed: Set[str]
    ) -> Iterator[BoundaryTensor]:
        seen: set[object] = set()
        for operator, member in zip(self.operators, self.members, strict=True):
            for index, name in enumerate(operator.inputs):
                if name is None or name in self.states or name in fixed:
                    continue
                boundary = _input(graph, member, name, index, name in needing)
                if boundary not in seen:
                    seen.add(boundary)
                    yield boundary

    def _outputs(self, graph: OperatorGraph, needing: Set[str]) -> Iterator[BoundaryTensor]:
        names = {operator.name for operator in self.operators}
        for name, states in self.states.items():
            readers = {reader.name for reader in graph.consumers[name]}
            if readers - names:
                backward = tuple(map(gradient_needed, states)) if name in needing else None
                yield BoundaryTensor(
                    tensor=name, bytes=graph.specs[name].bytes, forward=states, backward=backward
                )


_REFUSED = Split(name="refused", role="sample", extent=0, inputs=(), outputs=())
"""In place of a split: the operator cannot follow."""


def _repeats(call: Call) -> bool:
    """Whether an operator makes several of what it reads, as of a class token one a sample."""
    return any(
        split.role != "reduction" and all(dim is None for dim in split.inputs)
        for split in splits_of(call)
    )


def _flows(operator: Operator, needing: Set[str]) -> bool:
    """Whether what an operator makes has a gradient."""
    return any(tensor.name in needing for tensor in operator.outputs)


def _member(
    operator: Operator, call: Call, needing: frozenset[str], splits: tuple[Split | None, ...]
) -> Member:
    wanted = input_needs_grad(operator, needing)
    return Member(
        operator=operator.name,
        call=call,
        wanted=wanted if _flows(operator, needing) else (False,) * len(wanted),
        splits=splits,
    )


def _input(
    graph: OperatorGraph, member: Member, name: str, index: int, gradient: bool
) -> BoundaryTensor:
    spec = graph.specs[name]
    forward: list[State] = []
    backward: list[State] = []
    halo: list[int] = []
    exchanged: list[int] = []
    statistics = [None if index else _statistics(member, n) for n in range(len(member.splits))]
    for split in member.splits:
        forward.append(WHOLE if split is None else needed(split, index))
        backward.append(WHOLE if split is None else gradient_made(split, index))
        halo.append(0 if split is None or index else _halo_bytes(split, spec.bytes, spec.shape))
        exchanged.append(0 if split is None or index else split.exchanged * ITEM_BYTES[spec.dtype])
    return BoundaryTensor(
        tensor=name,
        bytes=spec.bytes,
        forward=tuple(forward),
        backward=tuple(backward) if gradient else None,
        halo=tuple(halo) if any(halo) else (),
        statistics=tuple(statistics) if any(statistics) else (),
        exchanged=tuple(exchanged) if any(exchanged) else (),
    )


def _statistics(member: Member, number: int) -> SharedStatistics | None:
    """What the parts of a split all-reduce; other splits cut it if their pieces have less."""
    split = member.splits[number]
    if split is None or not split.statistics:
        return None
    cut_by = tuple(
        n
        for n, other in enumerate(member.splits)
        if other is not None and n != number and _less(member.call, other, split)
    )
    return SharedStatistics(split.statistics * STATISTIC, *split.rounds, cut_by)


def _less(call: Call, other: Split, split: Split) -> bool:
    piece = largest_piece(call, other, 2)
    return named_split_of(piece, split.name).statistics < split.statistics


def _halo_bytes(split: Split, total: int, shape: tuple[int, ...]) -> int:
    """The bytes beyond a cut that the windows next to it read."""
    dim = split.inputs[0]
    if split.halo is None or dim is None or not shape[dim]:
        return 0
    return split.halo.shared(split.extent, shape[dim]) * total // shape[dim]
