"""Size substitution in a captured graph: every size mapped to another. Enters: a graph, and for
each of its sizes another. Leaves: the graph with those, without capturing it.

Every whole number from LEAST on in dims and attributes is a size and must have another; smaller
ones are numbers of dims and counts of parts and stay. So a graph whose sizes are different, large
numbers says which of them is which.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor, Value

LEAST = 11


def with_sizes(graph: OperatorGraph, sizes: Mapping[int, int]) -> OperatorGraph:
    """The graph with other sizes.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=13, i=17]
    ... operator y: y: float32[n=13] = sum(x) {dim=[1]}
    ... output y''')
    >>> [str(tensor) for tensor in with_sizes(graph, {13: 4, 17: 8}).definitions()]
    ['x: float32[n=4, i=8]', 'y: float32[n=4]']
    """
    resizing = _Resizing(graph.name, sizes)
    return replace(
        graph,
        inputs=tuple(map(resizing.tensor, graph.inputs)),
        parameters=tuple(
            replace(parameter, tensor=resizing.tensor(parameter.tensor))
            for parameter in graph.parameters
        ),
        buffers=tuple(map(resizing.tensor, graph.buffers)),
        operators=tuple(map(resizing.operator, graph.operators)),
        checks=tuple(map(resizing.operator, graph.checks)),
        traced=None,
    )


class _Resizing:
    def __init__(self, name: str, sizes: Mapping[int, int]) -> None:
        self._name, self._sizes = name, sizes

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor of other sizes."""
        return replace(tensor, dims=tuple((dim, self._size(n)) for dim, n in tensor.dims))

    def operator(self, operator: Operator) -> Operator:
        """An operator whose outputs and attributes have other sizes."""
        return replace(
            operator,
            outputs=tuple(map(self.tensor, operator.outputs)),
            attributes=tuple((key, self._value(value)) for key, value in operator.attributes),
        )

    def _value(self, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(self._size, value))
        if isinstance(value, int) and not isinstance(value, bool):
            return self._size(value)
        return value

    def _size(self, size: int) -> int:
        if size in self._sizes:
            return self._sizes[size]
        if size < LEAST:
            return size
        raise InputError(
            f"graph {self._name!r} has the size {size}, for which no other is given",
            "give one for each size of the graph",
        )
