"""Gate dims of recurrent weights: [gates x hidden, ...] as [gates, hidden, ...]. Enters: a graph as
it was captured. Leaves: the same graph, in which what a module holds as [gates x hidden, ...] is
[gates, hidden, ...].

PyTorch stacks the rows of all gates of an lstm (4) or gru (3) in one weight. A device that computes
some of the hidden units needs the same rows of every gate, which only lie in one box of the weight
if gates are a dim of their own. Values and their order are the same; `Parameter.stacked` says that
the module has both dims as one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from meshwright.graph.families.recurrent import gates_of
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter


def with_gates(graph: OperatorGraph) -> OperatorGraph:
    """The graph with a dim for the gates of each weight that recurrent layers alone read.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=2, i=3]
    ... input h: float32[n=2, h=4]
    ... parameter a: float32[out=12, in=3]
    ... parameter b: float32[out=12, in=4]
    ... operator s: y: float32[n=2, h=4] = gru_cell(x, h, a, b)
    ... output y''')
    >>> [p.tensor.shape for p in with_gates(graph).parameters]
    [(3, 4, 3), (3, 4, 4)]
    """
    learnt = {parameter.tensor.name for parameter in graph.parameters}
    gates: dict[str, int] = {}
    apart: set[str] = set(graph.outputs)
    apart |= {name for check in graph.checks for name in check.inputs if name is not None}
    for operator in graph.operators:
        weights = dict(_weights(operator, graph))
        if not weights.keys() <= learnt:
            weights = {}
        gates |= weights
        apart |= {name for name in operator.inputs if name is not None} - weights.keys()
    # A layer has the gates of all its weights apart, or of none.
    for operator in reversed(graph.operators):
        weights = dict(_weights(operator, graph))
        if not apart.isdisjoint(weights):
            apart |= weights.keys()
    counts = {name: count for name, count in gates.items() if name not in apart}
    parameters = tuple(
        _stacked(parameter, counts.get(parameter.tensor.name)) for parameter in graph.parameters
    )
    return msgspec.structs.replace(graph, parameters=parameters)


def _weights(operator: Operator, graph: OperatorGraph) -> Iterator[tuple[str, int]]:
    """The weights of an operator whose rows are grouped by gate, with how many gates there are."""
    for index, count in gates_of(graph.call(operator)).items():
        name = operator.inputs[index]
        if name is not None:
            yield name, count


def _stacked(parameter: Parameter, gates: int | None) -> Parameter:
    if gates is None or parameter.stacked:
        return parameter
    (_, rows), *rest = parameter.tensor.dims
    dims = (("gate", gates), ("hidden", rows // gates), *rest)
    tensor = msgspec.structs.replace(parameter.tensor, dims=dims)
    return msgspec.structs.replace(parameter, tensor=tensor, stacked=True)
