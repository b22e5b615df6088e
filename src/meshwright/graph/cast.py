"""Dtype cast of a graph (`module.to(dtype)`). Enters: a graph in float32. Leaves: what it is when
the module is cast.

Real tensors in float32 change, and with them attributes that name that dtype; complex ones are as
wide as they are, at least complex64. Tensors of other dtypes, such as positions and masks, stay as
they are. What makes tensors of nothing then says in which dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor, Value

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


NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp64": "float64",
}
"""What people call dtypes, and PyTorch's names."""

FP8 = "fp8"
"""Products with weights in 8 bits, all else in bfloat16: what the software of a device decides
(`cluster.rates.Software.products`), not a dtype of tensors."""


def dtype_named(text: str) -> str:
    """A dtype of tensors by PyTorch's name or by what people call it.

    >>> dtype_named("bf16"), dtype_named("float32")
    ('bfloat16', 'float32')
    """
    if text == FP8:
        raise InputError(
            "fp8 is no dtype of a model's tensors, but of its products with weights",
            "cast to bf16, and give a device that runs products in fp8 (docs/clusters.md); "
            "on the command line --dtype fp8 does both",
        )
    dtype = NAMES.get(text, text)
    if dtype not in LARGEST:
        raise InputError(f"there is no dtype {text!r} here", nearest(text, (*NAMES, *LARGEST)))
    return dtype


def cast_graph(graph: OperatorGraph, dtype: str) -> OperatorGraph:
    """The graph with every float32 tensor in another dtype.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4]
    ... input i: int64[n=4]
    ... operator r: y: float32[n=4] = relu(x)
    ... output y''')
    >>> [tensor.dtype for tensor in cast_graph(graph, "bfloat16").definitions()]
    ['bfloat16', 'int64', 'bfloat16']
    """
    return msgspec.structs.replace(
        graph,
        inputs=tuple(_tensor(tensor, dtype) for tensor in graph.inputs),
        parameters=tuple(
            msgspec.structs.replace(p, tensor=_tensor(p.tensor, dtype)) for p in graph.parameters
        ),
        buffers=tuple(_tensor(tensor, dtype) for tensor in graph.buffers),
        operators=tuple(_operators(graph.operators, dtype)),
        checks=tuple(_operators(graph.checks, dtype)),
    )


def _operators(operators: tuple[Operator, ...], dtype: str) -> Iterator[Operator]:
    for operator in operators:
        cast = tuple(_tensor(tensor, dtype) for tensor in operator.outputs)
        attributes = tuple((key, _value(key, value, dtype)) for key, value in operator.attributes)
        if not operator.inputs and cast != operator.outputs:
            attributes = tuple(sorted({**dict(attributes), "dtype": cast[0].dtype}.items()))
        yield msgspec.structs.replace(operator, outputs=cast, attributes=attributes)


def _named(dtype: str, wanted: str) -> str:
    """What a dtype becomes where float32 becomes the wanted one."""
    return {WIDE: wanted, COMPLEX: OF_PAIRS.get(wanted, COMPLEX)}.get(dtype, dtype)


def _tensor(tensor: Tensor, dtype: str) -> Tensor:
    return msgspec.structs.replace(tensor, dtype=_named(tensor.dtype, dtype))


def _value(key: str, value: Value, dtype: str) -> Value:
    """What an attribute is in another dtype: masks fill with the least number that there is."""
    if key == "dtype":
        return _named(value, dtype) if isinstance(value, str) else value
    if isinstance(value, float) and abs(value) == LARGEST[WIDE]:
        return math.copysign(LARGEST.get(dtype, abs(value)), value)
    return value
