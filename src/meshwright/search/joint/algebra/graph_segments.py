"""Graph segments: consecutive operators as subgraphs, with repeated ones recognised. Enters: an
`OperatorGraph`, rules. Leaves: `GraphSegment`s in order, each with the first that it is a copy of.

What is found out of a segment holds for its copies. Nothing is known here of costs.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from meshwright.graph.counts import tensors_requiring_grad
from meshwright.graph.operator_graph import OperatorGraph, Parameter
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.search.joint.algebra.partition import cuts

LEAST = 6
"""Operators of a segment; shorter ones have no variants worth a boundary."""


class GraphSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Operators in a row."""

    graph: OperatorGraph
    """The operators by themselves: what others make is an input, what others read an output."""
    enters: tuple[str, ...]
    """Inputs that others make and that need a gradient."""
    leaves: tuple[str, ...]
    """Outputs that others read and that need a gradient; none or one."""
    alike: int
    """The number of the first segment that is the same but for names: its own, if none is."""


def segments(
    graph: OperatorGraph, rules: RuleSet, *, least: int = LEAST, entries: int = 1
) -> tuple[GraphSegment, ...]:
    """A graph in pieces of at least so many operators, cut where few matches are lost.

    `entries` is how many tensors that need a gradient a segment may read from others: with one,
    what lies between a fork and a join is in one segment.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter v: float32[k=8, l=8]
    ... parameter w: float32[k=8, l=8]
    ... operator a: a: float32[n=4, k=8] = linear(x, v)
    ... operator b: b: float32[n=4, k=8] = relu(a)
    ... operator c: c: float32[n=4, k=8] = linear(b, w)
    ... operator d: d: float32[n=4, k=8] = relu(c)
    ... output d''')
    >>> for part in segments(graph, RuleSet(()), least=2):
    ...     print([op.name for op in part.graph.operators], part.enters, part.leaves, part.alike)
    ['a', 'b'] () ('b',) 0
    ['c', 'd'] ('b',) () 1
    """
    positions = cuts(graph, Matcher(graph, rules).matches, least, entries)
    needing = tensors_requiring_grad(graph)
    numbers: dict[object, int] = {}
    pieces: list[GraphSegment] = []
    for start, stop in pairwise(positions):
        segment = _alone(graph, start, stop, needing)
        alike = numbers.setdefault(_content(segment), len(pieces))
        pieces.append(msgspec.structs.replace(segment, alike=alike))
    return tuple(pieces)


def gradients_within(segment: GraphSegment, graph: OperatorGraph) -> frozenset[str]:
    """The tensors of a variant of a segment for which the backward pass makes a gradient."""
    entering = [tensor for tensor in graph.inputs if tensor.name in segment.enters]
    learnt = (Parameter(tensor=tensor) for tensor in entering)
    return tensors_requiring_grad(
        msgspec.structs.replace(
            graph,
            inputs=tuple(tensor for tensor in graph.inputs if tensor not in entering),
            parameters=(*graph.parameters, *learnt),
            outputs=segment.leaves or graph.outputs,
        )
    )


def _alone(graph: OperatorGraph, start: int, stop: int, needing: frozenset[str]) -> GraphSegment:
    """The operators from start to stop, not yet compared with others."""
    operators = graph.operators[start:stop]
    inside = {operator.name for operator in operators}
    produced = dict.fromkeys(tensor.name for operator in operators for tensor in operator.outputs)
    read = dict.fromkeys(
        name for operator in operators for name in operator.inputs if name is not None
    )
    external = {name: graph.tensors[name] for name in read if name not in produced}
    learnt = {p.tensor.name: p for p in graph.parameters if p.tensor.name in external}
    kept = {tensor.name for tensor in graph.buffers}
    shared = [
        name
        for name in produced
        if any(reader.name not in inside for reader in graph.consumers[name])
    ]
    enters = [name for name in external if name in needing and name in graph.producers]
    return GraphSegment(
        graph=OperatorGraph(
            name=f"{graph.name} {start} to {stop}",
            inputs=tuple(t for n, t in external.items() if n not in learnt and n not in kept),
            parameters=tuple(learnt[name] for name in external if name in learnt),
            buffers=tuple(tensor for name, tensor in external.items() if name in kept),
            operators=operators,
            outputs=tuple(n for n in produced if n in shared or n in graph.outputs),
            loss=graph.loss if graph.loss in produced else None,
            traced=graph.traced if graph.returned & produced.keys() else None,
        ),
        enters=tuple(enters),
        leaves=tuple(name for name in shared if name in needing),
        alike=-1,
    )


def _content(segment: GraphSegment) -> tuple[object, ...]:
    """Equal for segments that are the same but for names."""
    graph = segment.graph
    number: dict[str | None, int] = {None: -1}
    number |= {tensor.name: n for n, tensor in enumerate(graph.definitions())}
    number_of = number.__getitem__
    return (
        tuple(tensor.spec for tensor in graph.definitions()),
        tuple(map(len, (graph.inputs, graph.buffers))),
        tuple(parameter.trainable for parameter in graph.parameters),
        tuple(
            (op.kind, op.attributes, tuple(map(number_of, op.inputs)), len(op.outputs))
            for op in graph.operators
        ),
        *(
            tuple(map(number_of, names))
            for names in (graph.outputs, (graph.loss,), segment.enters, segment.leaves)
        ),
        tuple(number[name] for name in sorted(graph.returned) if name in number),
    )
