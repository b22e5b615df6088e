"""Canonical hash of an operator graph: digests from inputs down and from readers up. Enters: a
graph. Leaves: 64 hexadecimal digits, or a number.

It does not depend on the names of operators, intermediate tensors, dims and layers, nor on the
order of operators that do not depend on each other. It does depend on the names of inputs,
parameters and buffers, which are how the outside speaks of them.

    down(op) = H(kind, attributes, specs of the outputs, (down, index) of each input)
    up(op)   = H(down, the sorted (up of reader, position) of each output, output positions)
    hash     = H(sorted up of all operators, sorted sources, outputs, loss, guards)
The way up tells apart operators that are computed alike but used differently: two dropouts of one
tensor are not one dropout used twice. H is a digest that all processes share (`canonical_hash`), or
numbers in the order of appearance, which are several times faster to make (`Contents`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from meshwright.graph.operator_graph import Operator, OperatorGraph

_Mark = TypeVar("_Mark", int, str)
_Marking = Callable[[Hashable], _Mark]


def canonical_hash(graph: OperatorGraph) -> str:
    """The same for graphs that compute the same in the same way.

    >>> from meshwright.graph.text import parse_graph
    >>> text = '''graph g
    ... input x: float32[n=4]
    ... operator a: h: float32[n=4] = exp(x)
    ... output h'''
    >>> renamed = text.replace("a: h:", "b: k:").replace("output h", "output k")
    >>> canonical_hash(parse_graph(text)) == canonical_hash(parse_graph(renamed))
    True
    """
    return _content(graph, _digest)


class Contents:
    r"""Numbers for graphs: the same for two that one of these is shown exactly if their hashes are.

    >>> from meshwright.graph.text import parse_graph
    >>> text = "graph g\ninput x: float32[n=4]\noperator a: h: float32[n=4] = exp(x)\noutput h"
    >>> contents = Contents()
    >>> texts = text, text.replace(" a:", " b:"), text.replace("4", "5")
    >>> one, other, longer = (contents.number(parse_graph(text)) for text in texts)
    >>> one == other, one == longer
    (True, False)
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, graph: OperatorGraph) -> int:
        """The number of a graph."""
        return _content(graph, self._mark)

    def _mark(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _content(graph: OperatorGraph, mark: _Marking[_Mark]) -> _Mark:
    down = _down(graph, mark, graph.operators)
    up = _up(graph, down, mark)
    sources = sorted(down[t.name] for t in graph.definitions() if t.name not in graph.producers)
    ends = tuple(down[name] for name in graph.outputs)
    loss = None if graph.loss is None else down[graph.loss]
    whole = mark((tuple(sorted(up.values())), tuple(sources), ends, loss))
    return mark((whole, _guards(graph, mark))) if graph.guards else whole


def _guards(graph: OperatorGraph, mark: _Marking[_Mark]) -> tuple[_Mark, ...]:
    """What the guards demand, in any order."""
    checked = _down(graph, mark, graph.checks)
    return tuple(
        sorted(
            mark((checked[guard.tensor], repr(guard.value), guard.line)) for guard in graph.guards
        )
    )


def _down(
    graph: OperatorGraph, mark: _Marking[_Mark], operators: Sequence[Operator]
) -> dict[str, _Mark]:
    """For each tensor how it is computed."""
    trained = {p.tensor.name: (p.trainable, p.also, p.stacked) for p in graph.parameters}
    marks = {
        tensor.name: mark((tensor.name, tensor.dtype, tensor.shape, trained.get(tensor.name)))
        for tensor in graph.definitions()
        if tensor.name not in graph.producers
    }
    for operator in operators:
        specs = tuple((t.dtype, t.shape) for t in operator.outputs)
        reads = tuple(None if name is None else marks[name] for name in operator.inputs)
        # As text, since 1, 1.0 and True are equal but mean different things.
        operator_mark = mark((operator.kind, repr(operator.attributes), specs, reads))
        for index, tensor in enumerate(operator.outputs):
            marks[tensor.name] = mark((operator_mark, index))
    return marks


def _up(graph: OperatorGraph, down: dict[str, _Mark], mark: _Marking[_Mark]) -> dict[str, _Mark]:
    """For each operator how it is computed and how it is used."""
    uses: dict[str, list[tuple[_Mark, int]]] = {t.name: [] for t in graph.definitions()}
    for index, name in enumerate(graph.outputs):
        uses[name].append((mark("output"), index))
    if graph.loss is not None:
        uses[graph.loss].append((mark("loss"), 0))
    marks: dict[str, _Mark] = {}
    for operator in reversed(graph.operators):
        used = tuple((down[t.name], tuple(sorted(uses[t.name]))) for t in operator.outputs)
        operator_mark = mark((operator.kind, used))
        marks[operator.name] = operator_mark
        for position, read in enumerate(operator.inputs):
            if read is not None:
                uses[read].append((operator_mark, position))
    return marks


def _digest(value: Hashable) -> str:
    """Tuples, texts, numbers and None print alike exactly if they are alike."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
