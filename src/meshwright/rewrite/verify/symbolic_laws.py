"""Symbolic laws of parallel and data-movement operators (partition, concat, transpose ...). Enters:
values. Leaves: values.

Written from the laws of `types`, for whole tensors: cutting and combining change no element.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from meshwright.rewrite.language.terms import Attribute
from meshwright.rewrite.language.types import COPY, FRONT, STEP
from meshwright.rewrite.verify.case_split import ChooseError, SymbolicAxis
from meshwright.rewrite.verify.context import Context, Places, Value, position
from meshwright.rewrite.verify.polynomials import Polynomial, Where, total
from meshwright.rewrite.verify.spaces import (
    ONE,
    BeyondError,
    Monomial,
    RefineError,
    Space,
    VacuousError,
    as_space,
    cofactor_symbol,
    equate,
    outer,
    quotient,
    resolve,
)

SHORT: Mapping[str, str] = {
    "partition": "", "combine": "", "replicate": "copies", "reduce": "sums",
}  # fmt: skip
"""Operators that may act on any axis, each with the one that it acts on if it names none."""


def over(
    context: Context, attributes: Sequence[Attribute], value: Value, short: str
) -> tuple[int, Monomial]:
    """The axis and the degree of a parallel operator; `short` is the axis if it names none."""
    if len(attributes) == 1:
        attributes = (short, *attributes)
    if len(attributes) != 2:
        raise VacuousError
    number = context.world.axis(attributes[0], value.rank)
    degree = context.world.monomial(attributes[1])
    if number == STEP and not degree.symbols and degree != ONE:
        degree = Monomial(1, (f"#{degree.number}",))
    return number, degree


def _replaced(value: Value, number: int, space: Space, degree: Monomial) -> Value:
    axes = (*value.axes[:number], SymbolicAxis(space, degree), *value.axes[number + 1 :])
    return value._replace(axes=axes)


def _with(places: Places, number: int, place: Where) -> Places:
    return (*places[:number], place, *places[number + 1 :])


def _partition(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    number, degree = over(context, attributes, inputs[0], "")
    axis = inputs[0].axes[number]
    return (_replaced(inputs[0], number, axis.space, axis.degree * degree),)


def _combine(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    number, degree = over(context, attributes, inputs[0], "")
    axis = inputs[0].axes[number]
    return (_replaced(inputs[0], number, axis.space, divided(axis.degree, degree)),)


def divided(whole: Monomial, part: Monomial) -> Monomial:
    """Whole / part, which has to be one; a symbol of the whole is refined if need be."""
    ratio = quotient(whole, part)
    if ratio is not None:
        return ratio
    if whole == ONE and part.symbols:
        raise RefineError(part.symbols[0], as_space(ONE))
    if not whole.symbols and not part.symbols:
        raise VacuousError
    if len(whole.symbols) == 1 and whole.number == 1:
        symbol = whole.symbols[0]
        raise RefineError(symbol, as_space(part * Monomial(1, (cofactor_symbol(symbol),))))
    raise BeyondError(f"{whole} by {part}")


def _replicate(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number, degree = over(context, attributes, value, SHORT["replicate"])
    axis = value.axes[number]
    if degree.symbols and len(axis.space) > 1:
        raise BeyondError("copies of parts")
    space = tuple(degree.symbols + segment for _ in range(degree.number) for segment in axis.space)

    def at(places: Places) -> Polynomial:
        segment, names = position(places[number])
        inner = (segment % len(axis.space), names[len(degree.symbols) :])
        return value.at(_with(places, number, inner))

    cut = axis.degree if number == STEP else axis.degree * degree
    return (_replaced(value, number, space, cut)._replace(at=at),)


def _reduce(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number, degree = over(context, attributes, value, SHORT["reduce"])
    axis = value.axes[number]
    parts, rest = outer(axis.space, degree)

    def at(places: Places) -> Polynomial:
        segment, names = position(places[number])
        polynomial: Polynomial = ()
        for part in range(len(parts)):
            (_, outside), bound = context.fresh(parts, part)
            place = (part * len(rest) + segment, outside + names)
            polynomial += total(bound, value.at(_with(places, number, place)))
        return polynomial

    cut = axis.degree if number == STEP else _reduced(axis.degree, degree)
    return (_replaced(value, number, rest, cut)._replace(at=at),)


def _reduced(whole: Monomial, part: Monomial) -> Monomial:
    """The degree after a reduction: divided, or as it was where the axis was in one piece."""
    ratio = quotient(whole, part)
    if ratio is not None or whole == ONE:
        return ratio or ONE
    if len(whole.symbols) == 1 and whole.number == 1:
        symbol = whole.symbols[0]
        rest = Monomial(1, (cofactor_symbol(symbol),))
        raise ChooseError((symbol, as_space(ONE)), (symbol, as_space(part * rest)))
    raise BeyondError(f"{whole} reduced by {part}")


def _pipeline(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number, count = _micro(context, attributes, value)
    steps, axis = value.axes[STEP], value.axes[number]
    parts, rest = outer(axis.space, count)
    if context.dims_only:
        return (_replaced(value, number, rest, axis.degree)._replace(fronted=False),)
    if len(steps.space) > 1 or len(parts) > 1:
        raise BeyondError("steps of different kinds")
    length = len(steps.space[0])

    def at(places: Places) -> Polynomial:
        _, names = position(places[STEP])
        _, inner = position(places[number])
        moved = _with(places, STEP, (0, names[:length]))
        return value.at(_with(moved, number, (0, names[length:] + inner)))

    changed = _replaced(value, STEP, (steps.space[0] + parts[0],), steps.degree)
    return (_replaced(changed, number, rest, axis.degree)._replace(at=at),)


def _batch(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number, count = _micro(context, attributes, value)
    steps, axis = value.axes[STEP], value.axes[number]
    if len(axis.space) > 1:
        raise BeyondError("steps of different kinds")
    if context.dims_only:
        space = (count.symbols + axis.space[0],)
        return (_replaced(value, number, space, axis.degree)._replace(fronted=False),)
    if len(steps.space) > 1:
        raise BeyondError("steps of different kinds")
    names, length = steps.space[0], len(count.symbols)
    if tuple(names[len(names) - length :]) != count.symbols:
        if len(names) == 1:
            raise RefineError(names[0], ((cofactor_symbol(names[0]), *count.symbols),))
        raise BeyondError("steps that were made otherwise")

    def at(places: Places) -> Polynomial:
        _, before = position(places[STEP])
        _, inner = position(places[number])
        moved = _with(places, STEP, (0, before + inner[:length]))
        return value.at(_with(moved, number, (0, inner[length:])))

    changed = _replaced(value, STEP, (names[: len(names) - length],), steps.degree)
    space = (count.symbols + axis.space[0],)
    return (_replaced(changed, number, space, axis.degree)._replace(at=at),)


def _micro(context: Context, attributes: Sequence[Attribute], value: Value) -> tuple[int, Monomial]:
    number, count = over(context, attributes, value, "")
    if number < FRONT:
        raise VacuousError
    equate(value.axes[number].degree, ONE)
    if not count.symbols:
        count = Monomial(1, (f"#{count.number}",))
    return number, count


def _halo(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    context.world.axis(attributes[0], inputs[0].rank)
    return (inputs[0],)


def _concat(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    first = inputs[0]
    number = context.world.axis(attributes[0], first.rank)
    for other in inputs:
        if other.rank != first.rank:
            raise VacuousError
        if number >= FRONT or other.fronted:
            equate(other.axes[number].degree, ONE)
        for n, (a, b) in enumerate(zip(first.axes, other.axes, strict=True)):
            if n != number and (n >= FRONT or (first.fronted and other.fronted)):
                context.unify(a.space, b.space)
                equate(a.degree, b.degree)
    starts = list(itertools.accumulate((len(v.axes[number].space) for v in inputs), initial=0))

    def at(places: Places) -> Polynomial:
        segment, names = position(places[number])
        which = next(n for n in range(len(inputs)) if segment < starts[n + 1])
        return inputs[which].at(_with(places, number, (segment - starts[which], names)))

    if context.dims_only and number < FRONT:
        return (first._replace(fronted=False),)
    space = tuple(segment for value in inputs for segment in value.axes[number].space)
    same = number != COPY and all(value.same for value in inputs)
    return (_replaced(first, number, space, ONE)._replace(at=at, same=same),)


def _split(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number = context.world.axis(attributes[0], value.rank)
    if context.dims_only and number < FRONT:
        return (value._replace(fronted=False),) * len(attributes)
    equate(value.axes[number].degree, ONE)
    rest, begin = value.axes[number].space, 0
    pieces = []
    for size in attributes[1:]:
        wanted = _size(context, size)
        if rest[: len(wanted)] != wanted or len(rest) == len(wanted):
            if len(rest) == 1 and len(rest[0]) == 1:
                raise RefineError(rest[0][0], (*wanted, (cofactor_symbol(rest[0][0]),)))
            raise BeyondError(f"whether {wanted} begins {rest}")
        pieces.append(_part(value, number, begin, wanted))
        rest, begin = rest[len(wanted) :], begin + len(wanted)
    return (*pieces, _part(value, number, begin, rest))


def _size(context: Context, size: Attribute) -> Space:
    name = f"#{size}" if isinstance(size, int) else size
    return resolve(((name,),), context.world.known)


def _part(value: Value, number: int, begin: int, space: Space) -> Value:
    def at(places: Places) -> Polynomial:
        segment, names = position(places[number])
        return value.at(_with(places, number, (begin + segment, names)))

    return _replaced(value, number, space, ONE)._replace(at=at)


def _transpose(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    one, other = (context.world.axis(name, value.rank) for name in attributes)

    def at(places: Places) -> Polynomial:
        return value.at(_with(_with(places, one, places[other]), other, places[one]))

    axes = list(value.axes)
    axes[one], axes[other] = axes[other], axes[one]
    return (value._replace(axes=tuple(axes), at=at),)


def _flatten(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number = context.world.axis(attributes[0], value.rank)
    if number + 1 >= len(value.axes):
        raise VacuousError
    outside, inside = value.axes[number], value.axes[number + 1]
    equate(inside.degree, ONE)
    if len(inside.space) > 1:
        raise BeyondError("rows of parts")
    (inner,) = inside.space

    def at(places: Places) -> Polynomial:
        segment, names = position(places[number])
        length = len(names) - len(inner)
        both = ((segment, names[:length]), (0, names[length:]))
        return value.at((*places[:number], *both, *places[number + 1 :]))

    joined = SymbolicAxis(tuple(s + inner for s in outside.space), outside.degree)
    axes = (*value.axes[:number], joined, *value.axes[number + 2 :])
    return (value._replace(axes=axes, at=at),)


def _unflatten(
    context: Context, attributes: Sequence[Attribute], inputs: Sequence[Value]
) -> tuple[Value, ...]:
    value = inputs[0]
    number = context.world.axis(attributes[0], value.rank)
    axis, wanted = value.axes[number], _size(context, attributes[1])
    if len(wanted) > 1 or len(axis.space) > 1:
        raise BeyondError("parts of rows")
    (segment,), (want,) = axis.space, wanted
    if segment[: len(want)] != want:
        if len(segment) == 1:
            raise RefineError(segment[0], ((*want, cofactor_symbol(segment[0])),))
        raise BeyondError(f"whether {want} begins {segment}")

    def at(places: Places) -> Polynomial:
        (_, outside), (_, inside) = position(places[number]), position(places[number + 1])
        place = (0, outside + inside)
        return value.at((*places[:number], place, *places[number + 2 :]))

    parts = (SymbolicAxis((want,), axis.degree), SymbolicAxis((segment[len(want) :],), ONE))
    axes = (*value.axes[:number], *parts, *value.axes[number + 1 :])
    return (value._replace(axes=axes, at=at),)


Law = Callable[[Context, Sequence[Attribute], Sequence[Value]], tuple[Value, ...]]

LAWS: Mapping[str, Law] = {
    "partition": _partition, "combine": _combine, "replicate": _replicate, "reduce": _reduce,
    "pipeline": _pipeline, "batch": _batch, "halo": _halo,
    "concat": _concat, "split": _split, "transpose": _transpose,
    "flatten": _flatten, "unflatten": _unflatten,
}  # fmt: skip
