"""What a graph means, on arrays of shards: the definition that every checker uses.

Enters: operators, shards. Leaves: shards. Every parallel operator is written as what happens to
the pieces; a defined operator runs its line of index notation once for each task, on the pieces
that lie there, and knows nothing of the rest. Slow and plain on purpose. Which operators may meet
is told by `types`; what is proved or generated is not known here.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.rewrite.language.definitions import (
    DEFINITIONS,
    Apply,
    Definition,
    Expression,
    Extent,
    Label,
    Named,
    Number,
    Plus,
    Read,
    Times,
    Total,
    Window,
)
from meshwright.rewrite.language.terms import Attribute, Tensor, Term, nodes
from meshwright.rewrite.language.types import (
    COPY,
    FRONT,
    STEP,
    SUM,
    Axis,
    Meeting,
    Type,
    axis_number,
    infer,
    meet,
    over,
    rank,
)

Array = NDArray[np.float64]
Functions = Mapping[str, Callable[..., Array]]


class Shards(NamedTuple):
    """The pieces of a tensor: `values` has one axis of coordinates for each axis of the type, then
    one of elements for each.
    """

    type: Type
    values: Array

    @property
    def whole(self) -> Array:
        """The tensor put together, with steps, copies and sums in front; overlaps are left out."""
        n = len(self.type)
        values = self.values
        for number, axis in enumerate(self.type):
            kept = range(axis.before, values.shape[n + number] - axis.after)
            values = np.take(values, kept, axis=n + number)
        order = [place for number in range(n) for place in (number, n + number)]
        return values.transpose(order).reshape([axis.size for axis in self.type])


def cut(type_: Type, whole: Array) -> Shards:
    """The pieces of a tensor of this type, which does not overlap."""
    n = len(type_)
    shape = [part for axis in type_ for part in (axis.degree, axis.size // axis.degree)]
    order = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    return Shards(type_, whole.reshape(shape).transpose(order))


def of_array(value: Array) -> Shards:
    """A tensor in one piece."""
    type_ = (Axis(1),) * FRONT + tuple(Axis(size) for size in value.shape)
    return cut(type_, value.reshape([axis.size for axis in type_]))


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


def run(
    operator: str,
    attributes: Sequence[Attribute],
    inputs: Sequence[Shards],
    known: Mapping[str, Definition] = DEFINITIONS,
    functions: Functions = FUNCTIONS,
) -> tuple[Shards, ...]:
    """The outputs of one operator; a `MisfitError` if it cannot take its inputs.

    >>> x = of_array(np.arange(4.0))
    >>> [copies] = run("replicate", (2,), [x])
    >>> [total] = run("reduce", ("copies", 2), [copies])
    >>> total.whole[0, 0, 0]
    array([0., 2., 4., 6.])
    """
    types = infer(operator, attributes, [own.type for own in inputs], known)
    first, n = inputs[0], len(inputs[0].type)
    match operator:
        case "partition" | "combine" | "replicate" | "reduce":
            number, degree = over(operator, attributes, rank(first.type))
            values = _MOVES[operator](first, number, degree)
        case "pipeline" | "batch":
            number, count = over(operator, attributes, rank(first.type))
            values = _micro(operator, first, number, count)
        case "halo":
            values = _with_neighbours(first, types[0])
        case "concat":
            number = axis_number(attributes[0], rank(first.type))
            values = np.concatenate([own.values for own in inputs], axis=n + number)
        case "split":
            number = axis_number(attributes[0], rank(first.type))
            ends = np.cumsum([type_[number].size for type_ in types])[:-1]
            parts = np.split(first.values, ends, axis=n + number)
            return tuple(Shards(t, v) for t, v in zip(types, parts, strict=True))
        case "transpose":
            one, other = (axis_number(name, rank(first.type)) for name in attributes)
            values = first.values.swapaxes(one, other).swapaxes(n + one, n + other)
        case "flatten" | "unflatten":
            values = _reshaped(first, types[0])
        case _:
            values = _tasks(meet(known[operator], attributes, [own.type for own in inputs]),
                            attributes, inputs, functions)  # fmt: skip
    return (Shards(types[0], values),)


def evaluate(
    terms: Sequence[Tensor],
    inputs: Mapping[str, Shards],
    known: Mapping[str, Definition] = DEFINITIONS,
    functions: Functions = FUNCTIONS,
    bound: Mapping[str, Attribute] | None = None,
) -> tuple[Shards, ...]:
    """A graph of terms on values for its variables; `bound` gives the variables of attributes."""
    made: dict[Term, tuple[Shards, ...]] = {}

    def value(term: Tensor) -> Shards:
        return made[term.node][term.output] if isinstance(term, Term) else inputs[term.name]

    names = bound or {}
    for node in nodes(tuple(terms)):
        attributes = [names.get(a, a) if isinstance(a, str) else a for a in node.attributes]
        made[node] = run(node.operator, attributes, list(map(value, node.inputs)), known, functions)
    return tuple(map(value, terms))


def _partition(own: Shards, number: int, degree: int) -> Array:
    n, values = len(own.type), own.values
    shape = values.shape
    size = shape[n + number]
    pieces = values.reshape(*shape[: n + number], degree, size // degree, *shape[n + number + 1 :])
    beside = np.moveaxis(pieces, n + number, number + 1)
    return beside.reshape(
        *shape[:number], shape[number] * degree, *shape[number + 1 : n + number],
        size // degree, *shape[n + number + 1 :],
    )  # fmt: skip


def _combine(own: Shards, number: int, degree: int) -> Array:
    n, values = len(own.type), own.values
    shape = values.shape
    pieces = values.reshape(*shape[:number], shape[number] // degree, degree, *shape[number + 1 :])
    beside = np.moveaxis(pieces, number + 1, n + number)
    return beside.reshape(
        *shape[:number], shape[number] // degree, *shape[number + 1 : n + number],
        shape[n + number] * degree, *shape[n + number + 1 :],
    )  # fmt: skip


def _replicate(own: Shards, number: int, degree: int) -> Array:
    place = number if number != STEP else len(own.type) + STEP
    return np.concatenate([own.values] * degree, axis=place)


def _reduce(own: Shards, number: int, degree: int) -> Array:
    place = number if own.type[number].degree % degree == 0 else len(own.type) + number
    shape = own.values.shape
    parts = own.values.reshape(*shape[:place], degree, shape[place] // degree, *shape[place + 1 :])
    return np.asarray(parts.sum(axis=place))


_MOVES = {
    "partition": _partition, "combine": _combine, "replicate": _replicate, "reduce": _reduce,
}  # fmt: skip


def _micro(operator: str, own: Shards, number: int, count: int) -> Array:
    """Moves the outer part of a dim behind the steps, or the inner part of the steps back."""
    n, values = len(own.type), own.values
    step, dim = n + STEP, n + number
    shape = values.shape
    if operator == "pipeline":
        parts = values.reshape(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
        beside = np.moveaxis(parts, dim, step + 1)
        return beside.reshape(
            *shape[:step], shape[step] * count, *shape[step + 1 : dim],
            shape[dim] // count, *shape[dim + 1 :],
        )  # fmt: skip
    parts = values.reshape(*shape[:step], shape[step] // count, count, *shape[step + 1 :])
    beside = np.moveaxis(parts, step + 1, dim)
    return beside.reshape(
        *shape[:step], shape[step] // count, *shape[step + 1 : dim],
        shape[dim] * count, *shape[dim + 1 :],
    )  # fmt: skip


def _with_neighbours(own: Shards, wanted: Type) -> Array:
    n = len(own.type)
    number = next((i for i in range(n) if wanted[i] != own.type[i]), FRONT)
    axis, values = wanted[number], own.values
    length = axis.size // axis.degree
    rows = np.moveaxis(values, (number, n + number), (0, 1))
    line = rows.reshape(axis.size, *rows.shape[2:])
    padded = np.pad(line, [(axis.before, axis.after), *[(0, 0)] * (line.ndim - 1)])
    reach = length + axis.before + axis.after
    pieces = np.stack([padded[p * length : p * length + reach] for p in range(axis.degree)])
    return np.moveaxis(pieces, (0, 1), (number, n + number))


def _reshaped(own: Shards, wanted: Type) -> Array:
    """Coordinates and elements follow the type, since an inner dim is never cut."""
    return own.values.reshape(
        *(axis.degree for axis in wanted), *(axis.size // axis.degree for axis in wanted)
    )


def _tasks(
    meeting: Meeting, attributes: Sequence[Attribute], inputs: Sequence[Shards], fns: Functions
) -> Array:
    """Runs the definition once for each task, on the pieces that lie there."""
    own, degrees, output = meeting.definition, meeting.degrees, meeting.output
    pieces = [a.size // a.degree for a in output]
    result = np.zeros([*(a.degree for a in output), *pieces])
    settings: dict[str, Attribute] = dict(zip(own.parameters, attributes, strict=True))
    held = frozenset(label for label, degree in degrees.items() if degree > 1)
    ranges = [range(degrees[label]) for label in own.cuts]
    grid = itertools.product(
        range(output[STEP].degree), range(output[COPY].degree), range(meeting.sums.degree), *ranges
    )
    for step, copy, pending, *blocks in grid:
        at = dict(zip(own.cuts, blocks, strict=True)) | {"": pending}
        local = [
            operand.values[_coordinates(meeting, n, operand.type, step, copy, at)]
            for n, operand in enumerate(inputs)
        ]
        starts = {label: at[label] * (meeting.sizes[label] // degrees[label]) for label in own.cuts}
        part = 0
        for label in own.summed:
            part = part * degrees.get(label, 1) + at.get(label, 0)
        place = (step, copy, part * meeting.sums.degree + pending,
                 *(at.get(label.name, 0) for label in own.output))  # fmt: skip
        for inner in itertools.product(*(range(pieces[axis]) for axis in (STEP, COPY, SUM))):
            operands = [
                array[tuple(i if array.shape[a] > 1 else 0 for a, i in enumerate(inner))]
                for array in local
            ]
            result[place][inner] = compute(own, settings, operands, starts, fns, held)
    return result


def _coordinates(
    meeting: Meeting, operand: int, type_: Type, step: int, copy: int, at: Mapping[str, int]
) -> tuple[int, ...]:
    """Where the piece lies that a task reads of an operand: copies count labels, then the rest."""
    own = meeting.definition
    number = 0
    for label in meeting.lacking[operand]:
        number = number * (meeting.degrees[label] if label else meeting.sums.degree) + at[label]
    lacking = math.prod(
        meeting.degrees[label] if label else meeting.sums.degree
        for label in meeting.lacking[operand]
    )
    spare = type_[COPY].degree // lacking
    number = number * spare + (copy if spare > 1 else 0)
    dims = (
        at.get(index.name if isinstance(index, Label) else index.output, 0)
        for index in own.indices(own.operands[operand])
    )
    pending = at[""] if type_[SUM].degree > 1 else 0
    return (step, number, pending, *dims)


def compute(
    own: Definition,
    settings: Mapping[str, Attribute],
    operands: Sequence[Array],
    starts: Mapping[str, int],
    functions: Functions = FUNCTIONS,
    held: frozenset[str] = frozenset(),
) -> Array:
    """A definition on whole arrays; `starts` says where labels begin, for positions.

    Windows of the labels in `held` find what lies beyond the edge in the operand itself.
    """
    arrays = dict(zip(own.operands, operands, strict=True))
    sizes = _sizes(own, arrays, settings, held)
    labels = list(sizes)
    axis = {label: n for n, label in enumerate(labels)}

    def spread(values: Array, order: Sequence[str]) -> Array:
        """Values whose axes are these labels, with an axis for every label."""
        ordered = sorted(range(len(order)), key=lambda i: axis[order[i]])
        shape = [sizes[label] if label in order else 1 for label in labels]
        return values.transpose(ordered).reshape(shape)

    def read(own_read: Read) -> Array:
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
            case Read():
                return read(node)
            case Plus(terms=terms):
                return np.asarray(sum(map(visit, terms)))
            case Times(factors=factors):
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

    shape = [sizes[x] if Label(x) in own.output else 1 for x in labels]
    value = np.broadcast_to(visit(own.body), shape)
    kept = [x for x in labels if Label(x) in own.output]
    squeezed = value.squeeze(axis=tuple(axis[x] for x in labels if x not in kept))
    return squeezed.transpose([kept.index(label.name) for label in own.output])


def _sizes(
    own: Definition,
    arrays: Mapping[str, Array],
    settings: Mapping[str, Attribute],
    held: frozenset[str],
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    windows: list[tuple[Window, int]] = []
    for read in own.reads:
        for index, size in zip(read.indices, arrays[read.operand].shape, strict=True):
            if isinstance(index, Label):
                sizes[index.name] = size
            else:
                windows.append((index, size))
    for window, size in windows:
        padding = 0 if window.output in held else int(settings[window.padding])
        stride = int(settings[window.stride])
        sizes[window.output] = (size + 2 * padding - sizes[window.place]) // stride + 1
    return sizes
