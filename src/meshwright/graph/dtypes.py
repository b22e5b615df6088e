"""A graph in another dtype. Enters: a graph in float32. Leaves: what it is when the module is cast.

Real tensors in float32 change, and with them attributes that name that dtype; what is computed of
them in complex numbers is as wide as they are, at least complex64. Tensors of other dtypes, such as
positions and masks, stay as they are, and so do complex ones that no cast of a module reaches. What
makes tensors of nothing then says in which dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import msgspec

from meshwright.graph.model import Operator, OperatorGraph, Tensor, Value

WIDE = "float32"
COMPLEX = "complex64"
OF_PAIRS = {"float64": "complex128"}
"""The complex dtype of pairs of numbers, where it is another one than theirs in float32."""


LARGEST = {
    "float16": 65504.0,
    "bfloat16": 2.0**128 - 2.0**120,
    "float32": 2.0**128 - 2.0**104,
    "float64": sys.float_info.max,
}
"""The largest number of a dtype."""


def in_dtype(graph: OperatorGraph, dtype: str) -> OperatorGraph:
    """The graph with every float32 tensor in another dtype.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4]
    ... input i: int64[n=4]
    ... operator r: y: float32[n=4] = relu(x)
    ... output y''')
    >>> [tensor.dtype for tensor in in_dtype(graph, "bfloat16").definitions()]
    ['bfloat16', 'int64', 'bfloat16']
    """
    return msgspec.structs.replace(
        graph,
        inputs=tuple(_tensor(tensor, dtype) for tensor in graph.inputs),
        parameters=tuple(
            msgspec.structs.replace(p, tensor=_tensor(p.tensor, dtype)) for p in graph.parameters
        ),
        buffers=tuple(_tensor(tensor, dtype) for tensor in graph.buffers),
        operators=tuple(_operators(graph, graph.operators, dtype)),
        checks=tuple(_operators(graph, graph.checks, dtype)),
    )


def _operators(
    graph: OperatorGraph, operators: tuple[Operator, ...], dtype: str
) -> Iterator[Operator]:
    changed = {tensor.name for tensor in graph.definitions() if tensor.dtype == WIDE}
    for operator in operators:
        cast = [_tensor(tensor, dtype) for tensor in operator.outputs]
        pairs = COMPLEX
        if changed.intersection(operator.inputs):
            pairs = OF_PAIRS.get(dtype, COMPLEX)
            cast = [_paired(tensor, pairs) for tensor in cast]
            changed.update(tensor.name for tensor in cast if tensor.dtype.startswith("complex"))
        attributes = tuple(
            (key, _value(key, value, dtype, pairs)) for key, value in operator.attributes
        )
        if not operator.inputs and tuple(cast) != operator.outputs:
            attributes = tuple(sorted({**dict(attributes), "dtype": dtype}.items()))
        yield msgspec.structs.replace(operator, outputs=tuple(cast), attributes=attributes)


def _paired(tensor: Tensor, pairs: str) -> Tensor:
    return msgspec.structs.replace(tensor, dtype=pairs) if tensor.dtype == COMPLEX else tensor


def _tensor(tensor: Tensor, dtype: str) -> Tensor:
    return msgspec.structs.replace(tensor, dtype=dtype) if tensor.dtype == WIDE else tensor


def _value(key: str, value: Value, dtype: str, pairs: str) -> Value:
    """What an attribute is in another dtype: masks fill with the least number that there is."""
    if key == "dtype":
        return {WIDE: dtype, COMPLEX: pairs}.get(str(value), value)
    if isinstance(value, float) and abs(value) == LARGEST[WIDE]:
        return math.copysign(LARGEST.get(dtype, abs(value)), value)
    return value
