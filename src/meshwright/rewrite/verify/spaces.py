"""Symbolic sizes and degrees: index spaces and monomials, with unification. Enters: symbols.
Leaves: spaces, monomials, what they must be.

A space is what an index runs over: segments one after the other, each a product of symbols, outer
first, so that n + n is two segments (n) and d rows of n one segment (d n). A position in a space is
a segment and one index variable for each of its symbols. A degree is a monomial: a number times
symbols. Where an operator can only be taken if a symbol has some form, `Refine` says which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

Segment = tuple[str, ...]
Space = tuple[Segment, ...]

UNIT: Space = ((),)
"""A space of one position."""


class Monomial(NamedTuple):
    """A number times symbols, which are sorted."""

    number: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: object) -> Monomial:
        assert isinstance(other, Monomial)
        return Monomial(self.number * other.number, tuple(sorted(self.symbols + other.symbols)))


ONE = Monomial(1)


class RefineError(Exception):
    """A symbol has to be such a space, or the operators at hand cannot be taken."""

    def __init__(self, symbol: str, space: Space) -> None:
        super().__init__(f"{symbol} is {space}")
        self.options = ((symbol, space),)


class VacuousError(Exception):
    """No tensors are such that both sides can be taken: nothing is to be proved."""


class BeyondError(Exception):
    """The argument does not reach so far; the rule stays unproved."""


def resolve(space: Space, known: Mapping[str, Space]) -> Space:
    """A space with everything put in that is known of its symbols.

    >>> resolve((("d", "n"),), {"n": (("e", "m"),)})
    (('d', 'e', 'm'),)
    """
    segments: list[Segment] = []
    for segment in space:
        segments.extend(_expand(segment, known))
    return tuple(segments)


def _expand(segment: Segment, known: Mapping[str, Space]) -> Space:
    place = next((i for i, symbol in enumerate(segment) if symbol in known), None)
    if place is None:
        return (segment,)
    parts = resolve(known[segment[place]], known)
    if len(parts) > 1 and place > 0:
        raise BeyondError("rows of parts of different kinds")
    parts = tuple(segment[:place] + part + segment[place + 1 :] for part in parts)
    return resolve(parts, known)


def monomial(space: Space) -> Monomial:
    """The size of a space of equal segments."""
    if len(set(space)) != 1:
        raise BeyondError("a degree that is a sum of different parts")
    return Monomial(len(space), tuple(sorted(space[0])))


def as_space(monomial: Monomial) -> Space:
    """A space of this size."""
    return (monomial.symbols,) * monomial.number


def cofactor_symbol(symbol: str) -> str:
    """What is left of a symbol when something is taken out of it."""
    return f"{symbol}'"


def quotient(whole: Monomial, part: Monomial) -> Monomial | None:
    """Whole / part, if it is a monomial."""
    left = Counter(whole.symbols)
    left.subtract(Counter(part.symbols))
    if whole.number % part.number or min(left.values(), default=0) < 0:
        return None
    return Monomial(whole.number // part.number, tuple(sorted(left.elements())))


def equate(one: Monomial, other: Monomial) -> None:
    """Equal degrees; a symbol that is alone on a side is refined.

    >>> equate(Monomial(2, ("d",)), Monomial(1, ("e",)))
    Traceback (most recent call last):
    ...
    meshwright.rewrite.verify.spaces.RefineError: e is (('d',), ('d',))
    """
    if one == other:
        return
    common = Counter(one.symbols) & Counter(other.symbols)
    shared = math.gcd(one.number, other.number)
    left, right = (
        Monomial(
            degree.number // shared, tuple(sorted((Counter(degree.symbols) - common).elements()))
        )
        for degree in (one, other)
    )
    if left == right:
        return
    for side, across in ((left, right), (right, left)):
        if side.number == 1 and len(side.symbols) == 1:
            raise RefineError(side.symbols[0], as_space(across))
    if ONE in (left, right):
        product = left if right == ONE else right
        if product.number > 1:
            raise VacuousError
        raise RefineError(product.symbols[0], UNIT)
    if not left.symbols and not right.symbols:
        raise VacuousError
    raise BeyondError(f"whether {left} is {right}")


def unify(one: Space, other: Space) -> None:
    """Equal spaces; a symbol that is a whole space by itself is refined."""
    one, other = _without_common(one, other)
    if one == other:
        return None
    for side, across in ((one, other), (other, one)):
        if len(side) == 1 and len(side[0]) == 1 and across:
            raise RefineError(*solved(side[0][0], across))
    if len(one) == len(other) == 1:
        return _unify_products(one[0], other[0])
    if not one or not other:
        raise VacuousError
    times = math.gcd(len(one), len(other))
    if times > 1 and len({*one}) == len({*other}) == 1:
        return unify(one[: len(one) // times], other[: len(other) // times])
    raise BeyondError(f"whether {one} is {other}")


def solved(symbol: str, space: Space) -> tuple[str, Space]:
    """What follows if a symbol is this space, which may have the symbol in it.

    >>> solved("n", (("d", "n"),))
    ('d', ((),))
    """
    within = [segment for segment in space if symbol in segment]
    if not within:
        return symbol, space
    if len(space) > 1:
        raise VacuousError
    rest = list(space[0])
    rest.remove(symbol)
    return rest[0], UNIT


def _without_common(one: Space, other: Space) -> tuple[Space, Space]:
    """What is left when equal segments at the begin and at the end are taken away."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return one, other


def _alike(one: Segment, other: Segment) -> bool:
    """Whether products begin or end with one symbol."""
    return bool(one and other) and (one[0] == other[0] or one[-1] == other[-1])


def _unify_products(one: Segment, other: Segment) -> None:
    """Products that begin or end alike."""
    if one and other and one[0] == other[0]:
        unify((one[1:],), (other[1:],))
    elif one and other and one[-1] == other[-1]:
        unify((one[:-1],), (other[:-1],))
    elif () in (one, other):
        raise RefineError((one or other)[0], UNIT)
    else:
        raise BeyondError(f"whether {one} is {other}")


def outer(space: Space, parts: Monomial) -> tuple[Space, Space]:
    """A space as equal parts one after the other: the space of parts, and one part.

    >>> outer((("n",), ("n",)), Monomial(2))
    (((), ()), (('n',),))
    >>> outer((("d", "n"),), Monomial(1, ("d",)))
    ((('d',),), (('n',),))
    """
    if parts == ONE:
        return UNIT, space
    if not parts.symbols:
        return _outer_number(space, parts.number)
    if parts.number > 1 or len(space) > 1:
        raise BeyondError("parts of a number and of symbols at once")
    segment = space[0]
    if segment and segment[0] in parts.symbols:
        fewer = quotient(parts, Monomial(1, segment[:1]))
        assert fewer is not None
        (before,), rest = outer((segment[1:],), fewer)
        return (segment[:1] + before,), rest
    if len(segment) == 1:
        raise RefineError(segment[0], ((*parts.symbols, cofactor_symbol(segment[0])),))
    if not segment:
        raise RefineError(parts.symbols[0], UNIT)
    raise BeyondError(f"{parts} parts of {segment}")


def _outer_number(space: Space, number: int) -> tuple[Space, Space]:
    if len(space) % number == 0:
        length = len(space) // number
        groups = {space[g * length : (g + 1) * length] for g in range(number)}
        if len(groups) == 1:
            return ((),) * number, space[:length]
    if space == UNIT:
        raise VacuousError
    if len(space) == 1 and len(space[0]) == 1:
        raise RefineError(space[0][0], ((cofactor_symbol(space[0][0]),),) * number)
    raise BeyondError(f"{number} equal parts of {space}")
