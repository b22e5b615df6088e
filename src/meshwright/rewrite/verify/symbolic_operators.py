"""Symbolic evaluation of a defined operator on tensors of any size. Enters: a definition and
operands. Leaves: its output.

The counterpart of `types.meet` with symbols: labels have one space and one degree wherever they are
read; an operand has a copy for each piece of the labels it lacks; a cut label of the outermost sum
leaves as many sums to be taken, outermost among those that operands bring along.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwright.graph.notation import (
    Apply,
    Definition,
    Expression,
    Extent,
    Label,
    MisfitError,
    Named,
    Number,
    OperandRead,
    Plus,
    ProductTerm,
    Total,
    Window,
)
from meshwright.rewrite.language.terms import Attribute
from meshwright.rewrite.language.types import COPY, FRONT, STEP, SUM
from meshwright.rewrite.verify.case_split import ChooseError, Decision, SymbolicAxis
from meshwright.rewrite.verify.context import SLIDE, Context, Places, Value, position
from meshwright.rewrite.verify.polynomials import (
    Count,
    FunctionTerm,
    IndexTerm,
    Polynomial,
    Position,
    Slide,
    Where,
    factor,
    number,
    times,
    total,
)
from meshwright.rewrite.verify.spaces import (
    ONE,
    UNIT,
    BeyondError,
    Monomial,
    RefineError,
    Space,
    VacuousError,
    as_space,
    cofactor_symbol,
    equate,
    monomial,
    outer,
    quotient,
    unify,
)


class _Meeting(NamedTuple):
    own: Definition
    labels: Mapping[str, SymbolicAxis]
    settings: Mapping[str, Attribute]
    blocks: Mapping[str, tuple[Space, Space]]
    """For every label of the outermost sum its parts, and one part."""
    pending: Space
    """Sums that operands bring along."""


def apply_definition(
    context: Context,
    definition: Definition,
    attributes: Sequence[Attribute],
    inputs: Sequence[Value],
) -> Value:
    """The output of a defined operator."""
    try:
        expanded = definition.at(tuple(value.rank for value in inputs))
    except MisfitError:
        raise VacuousError from None
    if len(attributes) != len(expanded.parameters):
        raise VacuousError
    settings = dict(zip(expanded.parameters, attributes, strict=True))
    labels = _labels(context, expanded, settings, inputs)
    dims = tuple(labels[label.name] for label in expanded.output)
    if context.dims_only:
        return inputs[0]._replace(axes=(*inputs[0].axes[:FRONT], *dims), fronted=False)
    for value in inputs[1:]:
        unify(inputs[0].axes[STEP].space, value.axes[STEP].space)
    sums = _one_or_equal([value.axes[SUM] for value in inputs])
    needed = [
        _needed(expanded, operand, value, labels, sums)
        for operand, value in zip(expanded.operands, inputs, strict=True)
    ]
    extra = _one_or_equal([_extra(v, need) for v, need in zip(inputs, needed, strict=True)])
    blocks = {label: outer(labels[label].space, labels[label].degree) for label in expanded.summed}
    meeting = _Meeting(expanded, labels, settings, blocks, sums.space)
    space, degree = sums
    for label in reversed(expanded.summed):
        space = _product(blocks[label][0], space)
        degree = labels[label].degree * degree
    axes = (inputs[0].axes[STEP], extra, SymbolicAxis(space, degree), *dims)

    def at(places: Places) -> Polynomial:
        return _element(context, meeting, inputs, places)

    return Value(axes, at, all(value.same for value in inputs))


def _labels(
    context: Context,
    definition: Definition,
    settings: Mapping[str, Attribute],
    inputs: Sequence[Value],
) -> dict[str, SymbolicAxis]:
    axes: dict[str, SymbolicAxis] = {}
    windows: list[tuple[Window, SymbolicAxis]] = []
    operands = dict(zip(definition.operands, inputs, strict=True))
    for read in definition.reads:
        for index, axis in zip(read.indices, operands[read.operand].axes[FRONT:], strict=True):
            if isinstance(index, Window):
                windows.append((index, axis))
                continue
            _meet(context, axes, index.name, axis)
            if index.name not in definition.cuts:
                equate(axis.degree, ONE)
    for window, axis in windows:
        # How many places a window has follows from what it slides over; its name says of what.
        stride, padding = settings[window.stride], settings[window.padding]
        slid = f"{SLIDE}({axis.space}, {axes[window.place].space}, {stride}, {padding})"
        _meet(context, axes, window.output, SymbolicAxis(((slid,),), axis.degree))
    for label, length in definition.lengths:
        # As long as an attribute says, which is all that is known; never cut.
        axes[label] = SymbolicAxis(((f"{SLIDE} length {settings[length]}",),), ONE)
    return axes


def _meet(context: Context, axes: dict[str, SymbolicAxis], label: str, axis: SymbolicAxis) -> None:
    before = axes.setdefault(label, axis)
    context.unify(before.space, axis.space)
    equate(before.degree, axis.degree)


def _one_or_equal(axes: Sequence[SymbolicAxis]) -> SymbolicAxis:
    """The axis that all have that are not one position; all ways in which that can be so."""
    one = SymbolicAxis(UNIT, ONE)
    distinct = [axis for axis in dict.fromkeys(axes) if axis != one]
    if len(distinct) < 2:
        return distinct[0] if distinct else one
    a, b = distinct[:2]
    options: list[Decision] = [
        (axis.space[0][0], UNIT) for axis in (a, b) if len(axis.space) == 1 and axis.space[0]
    ]
    try:
        unify(a.space, b.space)
        equate(a.degree, b.degree)
    except RefineError as refinement:
        options += refinement.options
    except VacuousError:
        pass
    if not options:
        raise VacuousError
    raise ChooseError(*options)


def _needed(
    definition: Definition,
    operand: str,
    value: Value,
    labels: Mapping[str, SymbolicAxis],
    sums: SymbolicAxis,
) -> Monomial:
    present = {
        index.name if isinstance(index, Label) else index.output
        for index in definition.indices(operand)
    }
    needed = ONE
    for label in definition.cuts:
        if label not in present:
            needed *= labels[label].degree
    if value.axes[SUM].space == UNIT and sums.space != UNIT:
        needed *= sums.degree
    return needed


def _extra(value: Value, needed: Monomial) -> SymbolicAxis:
    """What is left of an operand's copies when the labels that it lacks have taken theirs."""
    axis = value.axes[COPY]
    if needed == ONE:
        return unordered_copies(axis) if value.same else axis
    if not value.same:
        raise BeyondError("copies that differ, one for each piece")
    degree = _taken(axis.degree, needed)
    size = quotient(monomial(axis.space), needed)
    if size is None:
        raise BeyondError("copies that do not lie on devices of their own")
    return SymbolicAxis(as_space(size), degree)


def unordered_copies(axis: SymbolicAxis) -> SymbolicAxis:
    """An axis of equal copies, which have no order."""
    return axis._replace(space=as_space(monomial(axis.space))) if len({*axis.space}) == 1 else axis


def _taken(whole: Monomial, part: Monomial) -> Monomial:
    """Whole / part; what must hold for that, if it follows without doubt."""
    ratio = quotient(whole, part)
    if ratio is not None:
        return ratio
    common = Counter(whole.symbols) & Counter(part.symbols)
    mine = tuple((Counter(whole.symbols) - common).elements())
    theirs = tuple(sorted((Counter(part.symbols) - common).elements()))
    shared = math.gcd(whole.number, part.number)
    numbers = whole.number // shared, part.number // shared
    if len(mine) == 1 and (numbers[0] == 1 or not theirs):
        missing = Monomial(numbers[1], theirs) * Monomial(1, (cofactor_symbol(mine[0]),))
        raise RefineError(mine[0], as_space(missing))
    if not mine and not theirs:
        raise VacuousError
    if not mine and whole.number == 1:
        raise RefineError(theirs[0], UNIT)
    raise BeyondError(f"{whole} copies for {part} pieces")


def _product(outside: Space, inside: Space) -> Space:
    if len(inside) > 1 and any(outside):
        raise BeyondError("rows of parts")
    return tuple(a + b for a in outside for b in inside)


def _element(
    context: Context,
    meeting: _Meeting,
    inputs: Sequence[Value],
    places: Places,
) -> Polynomial:
    definition = meeting.own
    blocks, pending = _taken_apart(meeting, position(places[SUM]))
    at: dict[str, Where] = {
        label.name: place for label, place in zip(definition.output, places[FRONT:], strict=True)
    }
    fronts = []
    for value in inputs:
        copies = value.axes[COPY].space
        if value.same or copies == UNIT:
            copy: Where = (0, ("*",) * len(copies[0]))
        else:
            copy = places[COPY]
        summand: Where = pending if value.axes[SUM].space != UNIT else (0, ())
        fronts.append((places[STEP], copy, summand))
    operands = {
        name: (value, front)
        for name, value, front in zip(definition.operands, inputs, fronts, strict=True)
    }

    def visit(node: Expression, at: Mapping[str, Where]) -> Polynomial:
        match node:
            case Number(value=constant):
                return number(constant)
            case Named(name=name) if name in at:
                return factor(IndexTerm(position(at[name])))
            case Named(name=name):
                return factor(Count(("setting", meeting.settings[name])))
            case Extent(label=label):
                return factor(Count(("size", meeting.labels[label].space)))
            case OperandRead(operand=operand, indices=indices):
                read, front = operands[operand]
                return read.at((*front, *(where(index, at) for index in indices)))
            case Plus(terms=terms):
                return tuple(product for term in terms for product in visit(term, at))
            case ProductTerm(factors=factors):
                polynomial = number(1)
                for own_factor in factors:
                    polynomial = times(polynomial, visit(own_factor, at))
                return polynomial
            case Apply(function=function, arguments=arguments):
                return factor(FunctionTerm(function, tuple(visit(a, at) for a in arguments)))
            case Total(labels=labels, body=body):
                return summed(labels, body, at)

    def where(index: Label | Window, at: Mapping[str, Where]) -> Where:
        if isinstance(index, Label):
            return at[index.name]
        stride, padding = meeting.settings[index.stride], meeting.settings[index.padding]
        return Slide(position(at[index.output]), position(at[index.place]), stride, padding)

    def summed(labels: tuple[str, ...], body: Expression, at: Mapping[str, Where]) -> Polynomial:
        spaces = [
            meeting.blocks[label][1] if label in blocks else meeting.labels[label].space
            for label in labels
        ]
        polynomial: Polynomial = ()
        for segments in itertools.product(*(range(len(space)) for space in spaces)):
            inner, bound = dict(at), []
            for label, space, segment in zip(labels, spaces, segments, strict=True):
                place, names = context.fresh(space, segment)
                bound += names
                inner[label] = _inside(blocks.get(label, (0, ())), place, len(space))
            polynomial += total(bound, visit(body, inner))
        return polynomial

    return visit(definition.body, at)


def _inside(block: Position, place: Position, length: int) -> Position:
    """A place in a part, seen from the whole."""
    return (block[0] * length + place[0], block[1] + place[1])


def _taken_apart(meeting: _Meeting, place: Position) -> tuple[dict[str, Position], Position]:
    """Which part of every summed label, and which of the operands' sums, a sum's position means."""
    segment, names = place
    positions: dict[str, Position] = {}
    inner = len(meeting.pending)
    for label in reversed(meeting.own.summed):
        inner *= len(meeting.blocks[label][0])
    for label in meeting.own.summed:
        parts = meeting.blocks[label][0]
        inner //= len(parts)
        which, segment = divmod(segment, inner)
        length = len(parts[which])
        positions[label] = (which, names[:length])
        names = names[length:]
    return positions, (segment, names)
