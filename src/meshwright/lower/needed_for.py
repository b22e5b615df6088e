"""Backward slice of a graph: the operators that a model's outputs depend on. Enters: a graph, and
tensors of it. Leaves: the operators that make them, and the inputs that only others read (targets).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.graph.operator_graph import OperatorGraph


def ancestor_operators(graph: OperatorGraph, tensors: Sequence[str]) -> frozenset[str]:
    """The operators of which some tensors are made, by name.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4]
    ... input t: float32[n=4]
    ... operator a: h: float32[n=4] = exp(x)
    ... operator b: d: float32[n=4] = sub(h, t)
    ... output d''')
    >>> sorted(ancestor_operators(graph, ["h"])), unneeded_inputs(graph, ["h"])
    (['a'], ('t',))
    """
    names, waiting = set[str](), list(tensors)
    while waiting:
        maker = graph.producers.get(waiting.pop())
        if maker is not None and maker.name not in names:
            names.add(maker.name)
            waiting += filter(None, maker.inputs)
    return frozenset(names)


def unneeded_inputs(graph: OperatorGraph, tensors: Sequence[str]) -> tuple[str, ...]:
    """The inputs that some tensors are not made of."""
    needed = ancestor_operators(graph, tensors)
    read = {
        name for operator in graph.operators if operator.name in needed for name in operator.inputs
    }
    return tuple(tensor.name for tensor in graph.inputs if tensor.name not in read)
