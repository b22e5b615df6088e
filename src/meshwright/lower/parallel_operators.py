"""Parallel operators (Unity, OSDI 2022): a plan as a graph in which communication is explicit.

Enters: a `ParallelGraph`. Leaves: op groups with their layouts and, on the edges between them,
    Partition  cuts a tensor along a dim          Combine    joins what is cut along a dim
    Replicate  gives every coordinate a copy      Reduce     sums what the coordinates hold
    Pipeline   cuts a tensor into micro-batches   Batch      joins or sums those of a result
and Move, from one coordinate to another, each over some mesh factors or over the steps of a
pipeline. A resharding is a row of them, carried out by the collectives behind it (an AllGather is
Combine, Replicate; an AllReduce is Reduce, Replicate; an AllToAll is Combine, Partition). In the
backward pass each becomes its dual, in reverse. Taking them out gives back the graph: `erase`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.transfers import Exchange, GroupCollective
from meshwright.sharding.layout import Layout
from meshwright.sharding.states import PARTIAL, WHOLE, States, is_at
from meshwright.sharding.unit import OpGroup

Kind = Literal["Partition", "Combine", "Replicate", "Reduce", "Move", "Pipeline", "Batch"]


class ParallelOperator(msgspec.Struct, frozen=True, kw_only=True):
    """A change of how one tensor lies, along mesh factors or over micro-batches."""

    kind: Kind
    over: tuple[int, ...]
    """Mesh factors; of Pipeline and Batch how many micro-batches."""
    dim: int | None = None

    def __str__(self) -> str:
        along = "" if self.dim is None else f" dim {self.dim}"
        numbers = ",".join(map(str, self.over))
        steps = f"{numbers} micro-batches" if self.kind in ("Pipeline", "Batch") else numbers
        return f"{self.kind}{along} over {steps}"


class Placed(NamedTuple):
    """An op group with its layout."""

    unit: OpGroup
    layout: Layout

    def __str__(self) -> str:
        return f"{self.unit.name}: {self.layout}"


class ParallelEdge(NamedTuple):
    """What happens to a tensor between its maker and one of its readers."""

    tensor: str
    reader: str
    """The op group that reads it so; empty of a result."""
    operators: tuple[ParallelOperator, ...]
    collectives: tuple[str, ...]
    """What carries them out."""

    def __str__(self) -> str:
        reader = f" for {self.reader}" if self.reader else ""
        by = f" [{', '.join(self.collectives)}]" if self.collectives else ""
        return f"{self.tensor}{reader}: {'; '.join(map(str, self.operators)) or 'Exchange'}{by}"


def written(parallel: ParallelGraph) -> str:
    """The graph as text, in an order in which it can run.

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
    ...             layouts=(("y", "sample channel"), ("s", "sample sample")))
    >>> print(written(ParallelGraph(plan)))
    y: sample channel
    y for s: Combine dim 1 over 1; Partition dim 0 over 1 [exchange of boxes]
    s: sample sample
    """
    return "\n".join(map(str, nodes(parallel)))


def nodes(parallel: ParallelGraph) -> Iterator[Placed | ParallelEdge]:
    """Op groups, each behind what happens to the tensors that it reads; then results."""
    plan = parallel.plan
    for number, unit in enumerate(plan.units):
        yield from _cut_inputs(parallel, number, unit)
        for index, boundary in enumerate(unit.inputs):
            delivery = parallel.deliveries[parallel.readings[number, index].delivery]
            if delivery.steps:
                placement = parallel.made[boundary.tensor].forward
                yield ParallelEdge(
                    tensor=boundary.tensor,
                    reader=unit.name,
                    operators=tuple(_between(placement.states, delivery.lying.states)),
                    collectives=tuple(map(_collective, delivery.steps)),
                )
        yield Placed(unit, parallel.layouts[number])
    yield from _joined_results(parallel)


def erase(parallel: ParallelGraph) -> OperatorGraph:
    """The graph without layouts and parallel operators."""
    graph = parallel.plan.graph
    placed = (node for node in nodes(parallel) if isinstance(node, Placed))
    members = {member.operator for node in placed for member in node.unit.members}
    kept = tuple(operator for operator in graph.operators if operator.name in members)
    return msgspec.structs.replace(graph, operators=kept)


def _cut_inputs(parallel: ParallelGraph, number: int, unit: OpGroup) -> Iterator[ParallelEdge]:
    """The inputs of the graph of which each micro-batch has its part."""
    samples, graph = parallel.samples, parallel.plan.graph
    split = samples.split[number]
    if split is None:
        return
    inputs, yielded = {tensor.name for tensor in graph.inputs}, set[str]()
    for member in unit.members:
        member_split = member.splits[split]
        if member_split is None:
            continue
        for name, dim in zip(graph.named[member.operator].inputs, member_split.inputs, strict=True):
            if name in inputs and dim is not None and name not in yielded:
                yielded.add(name)
                cut = ParallelOperator(kind="Pipeline", over=(samples.micro_batches,), dim=dim)
                yield ParallelEdge(name, unit.name, (cut,), ())


def _joined_results(parallel: ParallelGraph) -> Iterator[ParallelEdge]:
    """Results that are made for each micro-batch: rows are joined, a loss is summed."""
    samples = parallel.samples
    for name in parallel.plan.graph.outputs:
        state = samples.dims.get(name, WHOLE)
        if samples.micro_batches > 1 and state != WHOLE:
            dim = state if state >= 0 else None
            joined = ParallelOperator(kind="Batch", over=(samples.micro_batches,), dim=dim)
            yield ParallelEdge(name, "", (joined,), ())


def _collective(step: GroupCollective | Exchange) -> str:
    match step:
        case GroupCollective(kind=kind):
            return kind.value
        case Exchange():
            return "exchange of boxes"


def _between(source: States, needed: States) -> Iterator[ParallelOperator]:
    """What leads from one row of states to another, changes of one kind together."""
    changed = [f for f, (a, b) in enumerate(zip(source, needed, strict=True)) if a != b]
    moved = [f for f in changed if is_at(source[f]) and is_at(needed[f])]
    if moved:
        yield ParallelOperator(kind="Move", over=tuple(moved))
    summed = [f for f in changed if source[f] == PARTIAL]
    if summed:
        yield ParallelOperator(kind="Reduce", over=tuple(summed))
    for dim in sorted({source[f] for f in changed if source[f] >= 0}):
        joined = tuple(f for f in changed if source[f] == dim)
        yield ParallelOperator(kind="Combine", over=joined, dim=dim)
    for dim in sorted({needed[f] for f in changed if needed[f] >= 0}):
        cut = tuple(f for f in changed if needed[f] == dim)
        yield ParallelOperator(kind="Partition", over=cut, dim=dim)
    copied = [f for f in changed if needed[f] == WHOLE]
    if copied:
        yield ParallelOperator(kind="Replicate", over=tuple(copied))
