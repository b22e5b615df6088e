"""A graph in which communication is explicit. Enters: a graph, a layout for every unit.
Leaves: a `ParallelGraph`: units with their layouts and, between them, parallel operators.

Unity's four operators, each over some factors of the machine:
    Partition  cuts a tensor along a dim          Combine    joins what is cut along a dim
    Replicate  gives every coordinate a copy      Reduce     sums what the coordinates hold
and Move, from one coordinate to another. A resharding is a row of them (an AllGather is Combine,
Replicate; an AllReduce is Reduce, Replicate; an AllToAll is Combine, Partition). In the backward
pass each becomes its dual, in reverse. Taking them out gives back the graph: `erase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from meshwright.graph.model import OperatorGraph
from meshwright.sharding.layout import Layout
from meshwright.sharding.states import PARTIAL, WHOLE, State, States, at, is_at
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units

Kind = Literal["Partition", "Combine", "Replicate", "Reduce", "Move"]


class ParallelOperator(msgspec.Struct, frozen=True, kw_only=True):
    """A change of how one tensor lies along some factors."""

    kind: Kind
    factors: tuple[int, ...]
    dim: int | None = None

    def __str__(self) -> str:
        along = "" if self.dim is None else f" dim {self.dim}"
        return f"{self.kind}{along} over {','.join(map(str, self.factors))}"


class Resharding(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a tensor between its maker and one of its readers."""

    tensor: str
    reader: str
    """The unit that reads it so."""
    operators: tuple[ParallelOperator, ...]

    def __str__(self) -> str:
        return f"{self.tensor} for {self.reader}: {'; '.join(map(str, self.operators))}"


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A unit with its layout."""

    unit: OpGroup
    layout: Layout

    def __str__(self) -> str:
        return f"{self.unit.name}: {self.layout}"


class ParallelGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Units and reshardings, in an order in which they can run."""

    graph: OperatorGraph
    steps: tuple[Placed | Resharding, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def parallel_graph(graph: OperatorGraph, layouts: Sequence[Layout]) -> ParallelGraph:
    """The graph with one layout for each unit, in the order of `units`.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... operator z: z: float32[n=8, o=6] = relu(y)
    ... output z''')
    >>> laid = [Layout.parse("sample inner"), Layout.parse("sample replica")]
    >>> print(parallel_graph(graph, laid))
    y: sample inner
    y for z: Reduce over 1; Replicate over 1
    z: sample replica
    """
    own = units(graph)
    made: dict[str, States] = {}
    steps: list[Placed | Resharding] = []
    for unit, layout in zip(own, layouts, strict=True):
        for port in unit.inputs:
            needed = along_factors(unit, port.there, layout)
            # A parameter lies as its first reader needs it.
            before = made.setdefault(port.tensor, needed)
            operators = tuple(_between(before, needed))
            if operators:
                steps.append(Resharding(tensor=port.tensor, reader=unit.name, operators=operators))
        steps.append(Placed(unit=unit, layout=layout))
        made.update((port.tensor, along_factors(unit, port.there, layout)) for port in unit.outputs)
    return ParallelGraph(graph=graph, steps=tuple(steps))


def erase(parallel: ParallelGraph) -> OperatorGraph:
    """The graph without layouts and parallel operators."""
    members = [
        member.operator
        for step in parallel.steps
        if isinstance(step, Placed)
        for member in step.unit.members
    ]
    position = {operator.name: n for n, operator in enumerate(parallel.graph.operators)}
    operators = sorted(members, key=position.__getitem__)
    by_name = {operator.name: operator for operator in parallel.graph.operators}
    return msgspec.structs.replace(
        parallel.graph, operators=tuple(by_name[name] for name in operators)
    )


def along_factors(unit: OpGroup, by_split: tuple[State, ...], layout: Layout) -> States:
    """The states of a tensor along every factor, given those under each split of its unit."""
    numbers = {split.name: number for number, split in enumerate(unit.splits)}
    found: list[State] = []
    for role, coordinate in zip(layout.roles, layout.coordinates(), strict=True):
        if coordinate is not None:
            found.append(at(coordinate))
        else:
            found.append(by_split[numbers[role]] if role in numbers else WHOLE)
    return tuple(found)


def _between(made: States, needed: States) -> Iterator[ParallelOperator]:
    """What leads from one row of states to another, changes of one kind together."""
    changed = [f for f, (a, b) in enumerate(zip(made, needed, strict=True)) if a != b]
    moved = [f for f in changed if is_at(made[f]) and is_at(needed[f])]
    if moved:
        yield ParallelOperator(kind="Move", factors=tuple(moved))
    summed = [f for f in changed if made[f] == PARTIAL]
    if summed:
        yield ParallelOperator(kind="Reduce", factors=tuple(summed))
    for dim in sorted({made[f] for f in changed if made[f] >= 0}):
        joined = tuple(f for f in changed if made[f] == dim)
        yield ParallelOperator(kind="Combine", factors=joined, dim=dim)
    for dim in sorted({needed[f] for f in changed if needed[f] >= 0}):
        cut = tuple(f for f in changed if needed[f] == dim)
        yield ParallelOperator(kind="Partition", factors=cut, dim=dim)
    copied = [f for f in changed if needed[f] == WHOLE]
    if copied:
        yield ParallelOperator(kind="Replicate", factors=tuple(copied))
