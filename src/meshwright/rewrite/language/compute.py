"""Interpreter of index notation on whole arrays. Enters: a definition and arrays. Leaves: an array.
Knows nothing of pieces but where labels begin.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.graph.notation import (
    Apply,
    Definition,
    Expression,
    Extent,
    Label,
    Named,
    Number,
    OperandRead,
    Plus,
    ProductTerm,
    Total,
    Window,
)
from meshwright.rewrite.language.terms import Attribute

Array = NDArray[np.float64]
Functions = Mapping[str, Callable[..., Array]]


def _weight(z: Array, m: Array, n: Array, score: Array) -> Array:
    return np.asarray(np.exp((score - 0.5 * (m < n)) / (1 + np.abs(z))))


FUNCTIONS: Functions = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "inverse": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "equal": lambda x, y: np.asarray(x == y, dtype=np.float64),
    "until": lambda end, row: np.asarray(end <= row, dtype=np.float64),
    "weight": _weight,
}
"""Functions of numbers. Gelu is told by its logistic form: any function would do."""


def _function(name: str, functions: Functions) -> Callable[..., Array]:
    """A function by its name; any function stands for one that nobody has told about."""
    if name in functions:
        return functions[name]
    seed = zlib.crc32(name.encode())
    numbers = np.random.default_rng(seed).uniform(0.5, 2.0, size=8)
    return lambda *values: np.asarray(
        np.sin(sum(a * x for a, x in zip(numbers, values, strict=False)) + numbers[-1])
    )


def compute(
    definition: Definition,
    settings: Mapping[str, Attribute],
    operands: Sequence[Array],
    starts: Mapping[str, int],
    functions: Functions = FUNCTIONS,
    held: frozenset[str] = frozenset(),
) -> Array:
    """A definition on whole arrays; `starts` says where labels begin, for positions.

    Windows of the labels in `held` find what lies beyond the edge in the operand itself.
    """
    arrays = dict(zip(definition.operands, operands, strict=True))
    sizes = _sizes(definition, arrays, settings, held)
    labels = list(sizes)
    axis = {label: n for n, label in enumerate(labels)}

    def spread(values: Array, order: Sequence[str]) -> Array:
        """Values whose axes are these labels, with an axis for every label."""
        ordered = sorted(range(len(order)), key=lambda i: axis[order[i]])
        shape = [sizes[label] if label in order else 1 for label in labels]
        return values.transpose(ordered).reshape(shape)

    def read(own_read: OperandRead) -> Array:
        values = arrays[own_read.operand]
        order: list[str] = []
        for index in own_read.indices:
            place = len(order)
            if isinstance(index, Label):
                order.append(index.name)
                continue
            stride = int(settings[index.stride])
            padding = 0 if index.output in held else int(settings[index.padding])
            outputs, places = sizes[index.output], sizes[index.place]
            ends = [(0, 0)] * values.ndim
            ends[place] = (padding, padding)
            rows = np.arange(outputs)[:, None] * stride + np.arange(places)
            values = np.take(np.pad(values, ends), rows, axis=place)
            order += [index.output, index.place]
        return spread(values, order)

    def visit(node: Expression) -> Array:
        match node:
            case Number(value=value):
                return np.full([1] * len(labels), float(value))
            case Named(name=name) if name in axis:
                return spread(np.arange(sizes[name], dtype=float) + starts.get(name, 0), [name])
            case Named(name=name):
                return np.full([1] * len(labels), float(settings[name]))
            case Extent(label=label):
                return np.full([1] * len(labels), float(sizes[label]))
            case OperandRead():
                return read(node)
            case Plus(terms=terms):
                return np.asarray(sum(map(visit, terms)))
            case ProductTerm(factors=factors):
                return np.asarray(math.prod(map(visit, factors)))
            case Apply(function=function, arguments=arguments):
                return _function(function, functions)(*map(visit, arguments))
            case Total(labels=summed, body=body):
                inner = visit(body)
                full = [
                    sizes[label] if label in summed else size
                    for label, size in zip(labels, inner.shape, strict=True)
                ]
                places = tuple(axis[label] for label in summed)
                return np.asarray(np.broadcast_to(inner, full).sum(axis=places, keepdims=True))

    shape = [sizes[x] if Label(x) in definition.output else 1 for x in labels]
    value = np.broadcast_to(visit(definition.body), shape)
    kept = [x for x in labels if Label(x) in definition.output]
    squeezed = value.squeeze(axis=tuple(axis[x] for x in labels if x not in kept))
    return squeezed.transpose([kept.index(label.name) for label in definition.output])


def _sizes(
    definition: Definition,
    arrays: Mapping[str, Array],
    settings: Mapping[str, Attribute],
    held: frozenset[str],
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    windows: list[tuple[Window, int]] = []
    for read in definition.reads:
        for index, size in zip(read.indices, arrays[read.operand].shape, strict=True):
            if isinstance(index, Label):
                sizes[index.name] = size
            else:
                windows.append((index, size))
    for window, size in windows:
        padding = 0 if window.output in held else int(settings[window.padding])
        stride = int(settings[window.stride])
        sizes[window.output] = (size + 2 * padding - sizes[window.place]) // stride + 1
    return sizes | {label: int(settings[length]) for label, length in definition.lengths}
