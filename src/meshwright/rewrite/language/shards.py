"""Reference semantics of graphs of terms, executed on arrays of shards.

Enters: operators, shards. Leaves: shards. Every parallel operator is written as what happens to
the pieces; a defined operator runs its line of index notation once for each task, on the pieces
that lie there, and knows nothing of the rest. Slow and plain on purpose. Which operators may meet
is told by `types`; what is proved or generated is not known here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.graph.notation import Definition, Label
from meshwright.rewrite.language.compute import FUNCTIONS, Array, Functions, compute
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Attribute, Tensor, Term, nodes
from meshwright.rewrite.language.types import (
    COPY,
    FRONT,
    STEP,
    SUM,
    OperandGrid,
    Type,
    TypedAxis,
    axis_number,
    infer,
    meet,
    over,
    rank,
)


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


def unsharded_array(value: Array) -> Shards:
    """A tensor in one piece."""
    type_ = (TypedAxis(1),) * FRONT + tuple(TypedAxis(size) for size in value.shape)
    return cut(type_, value.reshape([axis.size for axis in type_]))


def run(
    operator: str,
    attributes: Sequence[Attribute],
    inputs: Sequence[Shards],
    known: Mapping[str, Definition] = DEFINITIONS,
    functions: Functions = FUNCTIONS,
) -> tuple[Shards, ...]:
    """The outputs of one operator; a `MisfitError` if it cannot take its inputs.

    >>> x = unsharded_array(np.arange(4.0))
    >>> [copies] = run("replicate", (2,), [x])
    >>> [total] = run("reduce", ("copies", 2), [copies])
    >>> total.whole[0, 0, 0]
    array([0., 2., 4., 6.])
    """
    types = infer(operator, attributes, [operand.type for operand in inputs], known)
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
            values = np.concatenate([operand.values for operand in inputs], axis=n + number)
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
            values = _tasks(meet(known[operator], attributes, [operand.type for operand in inputs]),
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
    outputs: dict[Term, tuple[Shards, ...]] = {}

    def value(term: Tensor) -> Shards:
        return outputs[term.node][term.output] if isinstance(term, Term) else inputs[term.name]

    names = bound or {}
    for node in nodes(tuple(terms)):
        attributes = [names.get(a, a) if isinstance(a, str) else a for a in node.attributes]
        outputs[node] = run(
            node.operator, attributes, list(map(value, node.inputs)), known, functions
        )
    return tuple(map(value, terms))


def _partition(shards: Shards, number: int, degree: int) -> Array:
    n, values = len(shards.type), shards.values
    shape = values.shape
    size = shape[n + number]
    pieces = values.reshape(*shape[: n + number], degree, size // degree, *shape[n + number + 1 :])
    beside = np.moveaxis(pieces, n + number, number + 1)
    return beside.reshape(
        *shape[:number], shape[number] * degree, *shape[number + 1 : n + number],
        size // degree, *shape[n + number + 1 :],
    )  # fmt: skip


def _combine(shards: Shards, number: int, degree: int) -> Array:
    n, values = len(shards.type), shards.values
    shape = values.shape
    pieces = values.reshape(*shape[:number], shape[number] // degree, degree, *shape[number + 1 :])
    beside = np.moveaxis(pieces, number + 1, n + number)
    return beside.reshape(
        *shape[:number], shape[number] // degree, *shape[number + 1 : n + number],
        shape[n + number] * degree, *shape[n + number + 1 :],
    )  # fmt: skip


def _replicate(shards: Shards, number: int, degree: int) -> Array:
    place = number if number != STEP else len(shards.type) + STEP
    return np.concatenate([shards.values] * degree, axis=place)


def _reduce(shards: Shards, number: int, degree: int) -> Array:
    place = number if shards.type[number].degree % degree == 0 else len(shards.type) + number
    shape = shards.values.shape
    parts = shards.values.reshape(
        *shape[:place], degree, shape[place] // degree, *shape[place + 1 :]
    )
    return np.asarray(parts.sum(axis=place))


_MOVES = {
    "partition": _partition, "combine": _combine, "replicate": _replicate, "reduce": _reduce,
}  # fmt: skip


def _micro(operator: str, shards: Shards, number: int, count: int) -> Array:
    """Moves the outer part of a dim behind the steps, or the inner part of the steps back."""
    n, values = len(shards.type), shards.values
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


def _with_neighbours(shards: Shards, wanted: Type) -> Array:
    n = len(shards.type)
    number = next((i for i in range(n) if wanted[i] != shards.type[i]), FRONT)
    axis, values = wanted[number], shards.values
    length = axis.size // axis.degree
    rows = np.moveaxis(values, (number, n + number), (0, 1))
    line = rows.reshape(axis.size, *rows.shape[2:])
    padded = np.pad(line, [(axis.before, axis.after), *[(0, 0)] * (line.ndim - 1)])
    reach = length + axis.before + axis.after
    pieces = np.stack([padded[p * length : p * length + reach] for p in range(axis.degree)])
    return np.moveaxis(pieces, (0, 1), (number, n + number))


def _reshaped(shards: Shards, wanted: Type) -> Array:
    """Coordinates and elements follow the type, since an inner dim is never cut."""
    return shards.values.reshape(
        *(axis.degree for axis in wanted), *(axis.size // axis.degree for axis in wanted)
    )


def _tasks(
    meeting: OperandGrid, attributes: Sequence[Attribute], inputs: Sequence[Shards], fns: Functions
) -> Array:
    """Runs the definition once for each task, on the pieces that lie there."""
    definition, degrees, output = meeting.definition, meeting.degrees, meeting.output
    pieces = [a.size // a.degree for a in output]
    result = np.zeros([*(a.degree for a in output), *pieces])
    settings: dict[str, Attribute] = dict(zip(definition.parameters, attributes, strict=True))
    held = frozenset(label for label, degree in degrees.items() if degree > 1)
    ranges = [range(degrees[label]) for label in definition.cuts]
    grid = itertools.product(
        range(output[STEP].degree), range(output[COPY].degree), range(meeting.sums.degree), *ranges
    )
    for step, copy, pending, *blocks in grid:
        at = dict(zip(definition.cuts, blocks, strict=True)) | {"": pending}
        local = [
            operand.values[_coordinates(meeting, n, operand.type, step, copy, at)]
            for n, operand in enumerate(inputs)
        ]
        starts = {
            label: at[label] * (meeting.sizes[label] // degrees[label]) for label in definition.cuts
        }
        part = 0
        for label in definition.summed:
            part = part * degrees.get(label, 1) + at.get(label, 0)
        place = (step, copy, part * meeting.sums.degree + pending,
                 *(at.get(label.name, 0) for label in definition.output))  # fmt: skip
        for inner in itertools.product(*(range(pieces[axis]) for axis in (STEP, COPY, SUM))):
            operands = [
                array[tuple(i if array.shape[a] > 1 else 0 for a, i in enumerate(inner))]
                for array in local
            ]
            result[place][inner] = compute(definition, settings, operands, starts, fns, held)
    return result


def _coordinates(
    meeting: OperandGrid, operand: int, type_: Type, step: int, copy: int, at: Mapping[str, int]
) -> tuple[int, ...]:
    """Where the piece lies that a task reads of an operand: copies count labels, then the rest."""
    definition = meeting.definition
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
        for index in definition.indices(definition.operands[operand])
    )
    pending = at[""] if type_[SUM].degree > 1 else 0
    return (step, number, pending, *dims)
