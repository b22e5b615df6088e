"""Type system of sharded tensors: sizes, degrees and the laws of parallel operators. Enters: types.
Leaves: types, or why they do not fit.

A type has an axis for steps, copies and sums and one for each dim; an axis of size n and degree d
is cut into d equal pieces. Laws of the parallel operators (each beside its dual, its gradient):

    partition[a, d]   degree of a times d          combine[a, d]  degree of a divided by d
    replicate[a, d]   size and degree times d      reduce[a, d]   both divided by d (size, if whole)
    pipeline[k, m]    m pieces of dim k as steps   batch[k, m]    steps back into dim k
    halo[k, b, a]     b rows of the piece before and a rows of the piece after are held too

`replicate[d]` is over copies, `reduce[d]` over sums: both are kept apart, and reducing over copies
gives d times the value. A defined operator runs one task for each piece of its labels; an operand
that lacks a label needs a copy for each piece of it; a cut sum leaves as many sums to be taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwright.graph.notation import Definition, Label, MisfitError, Window
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import AXES

FRONT = len(AXES)
"""Axes before the first dim."""

STEP, COPY, SUM = range(FRONT)


class TypedAxis(NamedTuple):
    """Size, number of pieces, and rows of neighbours that every piece holds too."""

    size: int
    degree: int = 1
    before: int = 0
    after: int = 0


Type = tuple[TypedAxis, ...]

PARALLEL = ("partition", "combine", "replicate", "reduce", "pipeline", "batch", "halo")
STRUCTURAL = ("concat", "split", "transpose", "flatten", "unflatten")

DIMS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(PARALLEL, (0,)),
    **dict.fromkeys(("concat", "split", "flatten", "unflatten"), (0,)),
    "transpose": (0, 1),
}
"""Which settings of an operator name dims or axes of its first operand."""

DUALS: Mapping[str, str] = {
    "partition": "combine", "combine": "partition",
    "replicate": "reduce", "reduce": "replicate",
    "pipeline": "batch", "batch": "pipeline",
}  # fmt: skip
"""What becomes of a parallel operator in the backward pass."""


def arities(known: Mapping[str, Definition] = DEFINITIONS) -> Mapping[str, tuple[int, ...]]:
    """How many inputs every operator of the language may have."""
    counts: dict[str, tuple[int, ...]] = dict.fromkeys((*PARALLEL, *STRUCTURAL), (1,))
    counts["concat"] = (2, 3, 4)
    return counts | {name: (len(definition.operands),) for name, definition in known.items()}


def plain(shape: Sequence[int]) -> Type:
    """A tensor in one piece.

    >>> plain((4, 8))[3:]
    (TypedAxis(size=4, degree=1, before=0, after=0), TypedAxis(size=8, degree=1, before=0, after=0))
    """
    return (TypedAxis(1),) * FRONT + tuple(TypedAxis(size) for size in shape)


def rank(type_: Type) -> int:
    """How many dims a tensor has."""
    return len(type_) - FRONT


def axis_number(name: object, rank: int) -> int:
    """Where an axis stands in a type.

    >>> axis_number("copies", 2), axis_number(-1, 2)
    (1, 4)
    """
    if isinstance(name, str):
        if name not in AXES:
            raise MisfitError(f"{name} is not bound")
        return AXES.index(name)
    if not isinstance(name, int):
        raise MisfitError(f"{name} is no dim")
    if not -rank <= name < rank:
        raise MisfitError(f"there is no dim {name} among {rank}")
    return FRONT + name % rank


def require_integer(value: object, what: str) -> int:
    """An attribute that has to be a number."""
    if not isinstance(value, int):
        raise MisfitError(f"{what} {value} is not bound")
    return value


def over(operator: str, attributes: Sequence[object], rank: int) -> tuple[int, int]:
    """The axis and the degree of a parallel operator with its short forms."""
    short = {"replicate": "copies", "reduce": "sums"}
    if len(attributes) == 1 and operator in short:
        attributes = (short[operator], *attributes)
    if len(attributes) != 2:
        raise MisfitError(f"{operator} has {len(attributes)} attributes, not an axis and a degree")
    degree = require_integer(attributes[1], "degree")
    if degree < 2:
        raise MisfitError(f"degree {degree} is less than two")
    return axis_number(attributes[0], rank), degree


def replaced(type_: Type, number: int, axis: TypedAxis) -> Type:
    """A type with one axis changed."""
    return (*type_[:number], axis, *type_[number + 1 :])


def infer(
    operator: str,
    attributes: Sequence[object],
    inputs: Sequence[Type],
    known: Mapping[str, Definition] = DEFINITIONS,
) -> tuple[Type, ...]:
    """The types of an operator's outputs; a `MisfitError` if it cannot take its inputs.

    >>> [out] = infer("partition", (0, 2), [plain((4, 8))])
    >>> out[3]
    TypedAxis(size=4, degree=2, before=0, after=0)
    """
    if operator in PARALLEL:
        return (_parallel(operator, attributes, inputs[0]),)
    match operator:
        case "concat":
            return (_concat(attributes, inputs),)
        case "split":
            return _split(attributes, inputs[0])
        case "transpose":
            return (_transpose(attributes, inputs[0]),)
        case "flatten":
            return (_flatten(attributes, inputs[0]),)
        case "unflatten":
            return (_unflatten(attributes, inputs[0]),)
        case _ if operator in known:
            return (meet(known[operator], attributes, inputs).output,)
        case _:
            raise MisfitError(f"there is no operator {operator}")


def _parallel(operator: str, attributes: Sequence[object], type_: Type) -> Type:
    if operator == "halo":
        return _halo(attributes, type_)
    number, degree = over(operator, attributes, rank(type_))
    axis = type_[number]
    if axis.before or axis.after:
        raise MisfitError(f"{operator} of an axis whose pieces overlap")
    if operator in ("pipeline", "batch"):
        return _micro(operator, number, degree, type_)
    size, cut = axis.size, axis.degree
    if number == STEP and operator in ("partition", "combine"):
        raise MisfitError("steps follow each other and cannot be cut")
    if operator == "partition":
        cut *= degree
    elif operator == "combine":
        if cut % degree:
            raise MisfitError(f"combine by {degree} of an axis of degree {cut}")
        cut //= degree
    elif operator == "replicate":
        size, cut = size * degree, cut * degree if number != STEP else 1
    else:
        if size % degree:
            raise MisfitError(f"reduce by {degree} of an axis of size {size}")
        if cut % degree and cut != 1:
            raise MisfitError(f"reduce by {degree} of an axis of degree {cut}")
        size, cut = size // degree, cut // degree if cut % degree == 0 else 1
    if size % cut:
        raise MisfitError(f"an axis of size {size} is cut into {cut}")
    return replaced(type_, number, TypedAxis(size, cut))


def _micro(operator: str, number: int, count: int, type_: Type) -> Type:
    steps, axis = type_[STEP], type_[number]
    if number < FRONT or axis.degree != 1 or steps.degree != 1:
        raise MisfitError(f"{operator} of an axis that is cut")
    if operator == "pipeline":
        if axis.size % count:
            raise MisfitError(f"pipeline by {count} of a dim of size {axis.size}")
        changed = TypedAxis(axis.size // count), TypedAxis(steps.size * count)
    else:
        if steps.size % count:
            raise MisfitError(f"batch by {count} of {steps.size} steps")
        changed = TypedAxis(axis.size * count), TypedAxis(steps.size // count)
    return replaced(replaced(type_, number, changed[0]), STEP, changed[1])


def _halo(attributes: Sequence[object], type_: Type) -> Type:
    if len(attributes) != 3:
        raise MisfitError("halo takes a dim, rows before and rows after")
    number = axis_number(attributes[0], rank(type_))
    before, after = (require_integer(value, "rows") for value in attributes[1:])
    axis = type_[number]
    if axis.before or axis.after or number < FRONT:
        raise MisfitError("halo of an axis that overlaps already, or is no dim")
    if not 0 <= max(before, after) <= axis.size // axis.degree or min(before, after) < 0:
        raise MisfitError(f"pieces of {axis.size // axis.degree} rows lend {max(before, after)}")
    return replaced(type_, number, axis._replace(before=before, after=after))


def _concat(attributes: Sequence[object], inputs: Sequence[Type]) -> Type:
    first = inputs[0]
    if len({len(type_) for type_ in inputs}) > 1 or len(attributes) != 1:
        raise MisfitError("concat of tensors of different ranks")
    number = axis_number(attributes[0], rank(first))
    if any(type_[number][1:] != (1, 0, 0) for type_ in inputs):
        raise MisfitError("concat along an axis that is cut")
    if any(replaced(type_, number, first[number]) != first for type_ in inputs):
        raise MisfitError("concat of tensors that differ in another axis")
    return replaced(first, number, TypedAxis(sum(type_[number].size for type_ in inputs)))


def _split(attributes: Sequence[object], type_: Type) -> tuple[Type, ...]:
    if len(attributes) < 2:
        raise MisfitError("split takes an axis and the sizes of all parts but the last")
    number = axis_number(attributes[0], rank(type_))
    sizes = [require_integer(value, "size") for value in attributes[1:]]
    rest = type_[number].size - sum(sizes)
    if type_[number][1:] != (1, 0, 0) or rest < 1 or min(sizes) < 1:
        raise MisfitError(
            f"split of {type_[number].size} at {sizes}, of an axis that is cut, or of nothing"
        )
    return tuple(replaced(type_, number, TypedAxis(size)) for size in (*sizes, rest))


def _transpose(attributes: Sequence[object], type_: Type) -> Type:
    if len(attributes) != 2:
        raise MisfitError("transpose takes two dims")
    one, other = (axis_number(name, rank(type_)) for name in attributes)
    if min(one, other) < FRONT:
        raise MisfitError("transpose of an axis that is no dim")
    return replaced(replaced(type_, one, type_[other]), other, type_[one])


def _flatten(attributes: Sequence[object], type_: Type) -> Type:
    if len(attributes) != 1:
        raise MisfitError("flatten takes a dim")
    number = axis_number(attributes[0], rank(type_))
    if number < FRONT or number + 1 >= len(type_):
        raise MisfitError("flatten takes a dim that is followed by another")
    outer, inner = type_[number], type_[number + 1]
    if inner[1:] != (1, 0, 0) or outer.before or outer.after:
        raise MisfitError("flatten of dims of which the inner is cut")
    joined = TypedAxis(outer.size * inner.size, outer.degree)
    return (*type_[:number], joined, *type_[number + 2 :])


def _unflatten(attributes: Sequence[object], type_: Type) -> Type:
    if len(attributes) != 2:
        raise MisfitError("unflatten takes a dim and the size of its outer part")
    number = axis_number(attributes[0], rank(type_))
    size, axis = require_integer(attributes[1], "size"), type_[number]
    if number < FRONT or size < 1 or axis.size % size or size % axis.degree or axis.before:
        raise MisfitError(
            f"unflatten of {axis.size} in {axis.degree} pieces into {size} outer parts"
        )
    parts = (TypedAxis(size, axis.degree), TypedAxis(axis.size // size))
    return (*type_[:number], *parts, *type_[number + 1 :])


class OperandGrid(NamedTuple):
    """How a defined operator meets its operands: the grid of its tasks."""

    definition: Definition
    """For the ranks at hand."""
    sizes: Mapping[str, int]
    degrees: Mapping[str, int]
    """Of every label; 1 for one that cannot be cut."""
    sums: TypedAxis
    """Sums that operands bring with them."""
    lacking: tuple[tuple[str, ...], ...]
    """For each operand the labels of which it needs a copy a piece; "" stands for the sums."""
    output: Type


def meet(defined: Definition, attributes: Sequence[object], inputs: Sequence[Type]) -> OperandGrid:
    """The grid of tasks of a defined operator; a `MisfitError` if its operands do not fit."""
    operands, parameters = len(defined.operands), len(defined.parameters)
    if len(inputs) != operands or len(attributes) != parameters:
        raise MisfitError(f"{defined.name} takes {operands} inputs and {parameters} attributes")
    definition = defined.at(tuple(map(rank, inputs)))
    types = dict(zip(definition.operands, inputs, strict=True))
    values = dict(zip(definition.parameters, attributes, strict=True))
    axes = _label_axes(definition, types, values)
    degrees = {label: axis.degree for label, axis in axes.items()}
    steps = {type_[STEP] for type_ in inputs}
    sums = {type_[SUM] for type_ in inputs} - {TypedAxis(1)}
    if len(steps) > 1 or len(sums) > 1:
        raise MisfitError("operands differ in steps or in sums to be taken")
    pending = next(iter(sums), TypedAxis(1))
    lacking, extra = [], set()
    for operand, type_ in types.items():
        present = {_plain_label(index) for index in definition.indices(operand)}
        absent = tuple(label for label in definition.cuts if label not in present)
        if pending.size > 1 and type_[SUM].size == 1:
            absent += ("",)
        needed = math.prod(degrees[label] if label else pending.degree for label in absent)
        size, degree = type_[COPY][:2]
        if degree % needed or size % needed:
            raise MisfitError(f"{operand} has {degree} copies where {needed} are needed")
        lacking.append(absent)
        extra.add(TypedAxis(size // needed, degree // needed))
    if len(extra - {TypedAxis(1)}) > 1:
        raise MisfitError("operands differ in copies")
    parts = math.prod(degrees[label] for label in definition.summed)
    output = (
        next(iter(steps)),
        next(iter(extra - {TypedAxis(1)}), TypedAxis(1)),
        TypedAxis(pending.size * parts, pending.degree * parts),
        *(axes[label.name] for label in definition.output),
    )
    sizes = {label: axis.size for label, axis in axes.items()}
    return OperandGrid(definition, sizes, degrees, pending, tuple(lacking), output)


def _plain_label(index: Label | Window) -> str:
    return index.name if isinstance(index, Label) else index.output


def _label_axes(
    definition: Definition, types: Mapping[str, Type], values: Mapping[str, object]
) -> dict[str, TypedAxis]:
    axes: dict[str, TypedAxis] = {}
    windows: list[tuple[Window, TypedAxis]] = []
    for read in definition.reads:
        for index, axis in zip(read.indices, types[read.operand][FRONT:], strict=True):
            if isinstance(index, Window):
                windows.append((index, axis))
                continue
            if axis.before or axis.after:
                raise MisfitError(f"{definition.name} reads a dim whose pieces overlap")
            if axes.setdefault(index.name, axis) != axis:
                raise MisfitError(
                    f"{definition.name} reads {index.name} as {axes[index.name]} and {axis}"
                )
            if axis.degree > 1 and index.name not in definition.cuts:
                raise MisfitError(f"{definition.name} cannot be cut along {index.name}")
    for window, axis in windows:
        slid = _slide(window, axis, axes[window.place].size, values)
        if axes.setdefault(window.output, slid) != slid:
            raise MisfitError(f"{definition.name} slides {window.output} over different dims")
    for label, length in definition.lengths:
        size = require_integer(values[length], "length")
        if size < 1:
            raise MisfitError(f"{definition.name} makes {size} of {label}")
        axes[label] = TypedAxis(size)
    return axes


def _slide(window: Window, axis: TypedAxis, places: int, values: Mapping[str, object]) -> TypedAxis:
    stride = require_integer(values[window.stride], "stride")
    padding = require_integer(values[window.padding], "padding")
    size = (axis.size + 2 * padding - places) // stride + 1
    if size < 1 or stride < 1 or padding < 0:
        raise MisfitError(f"a window of {places} does not fit {axis.size} rows")
    if axis.degree == 1:
        if axis.before or axis.after:
            raise MisfitError("a window over one piece that overlaps with none")
        return TypedAxis(size)
    if axis.size != stride * size or size % axis.degree:
        raise MisfitError(f"{axis.size} rows do not give {size} outputs piece by piece")
    if (axis.before, axis.after) != (padding, max(0, places - stride - padding)):
        raise MisfitError("the pieces do not hold the rows that the window reads")
    return TypedAxis(size, axis.degree)
