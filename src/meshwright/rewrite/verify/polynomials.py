"""Polynomial normal form of symbolic tensor elements, for equality checks. Enters: sums, products,
functions. Leaves: polynomials, and their canonical form.

A polynomial is a sum of monomials; a monomial is a number times a sum over bound index variables of
a product of factors; a factor is an element of an input, a function of polynomials, a position, or
the size of a symbol. Functions are not interpreted, so two canonical forms that are equal denote
equal numbers for all inputs and sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Position = tuple[int, tuple[str, ...]]
"""A segment of a space and an index variable for each of its symbols."""


class Slide(NamedTuple):
    """A position that a window reads: output and place, with stride and padding."""

    output: Position
    place: Position
    stride: object
    padding: object


Where = Position | Slide


class Element(NamedTuple):
    """An element of an input."""

    tensor: str
    places: tuple[Where, ...]


class FunctionTerm(NamedTuple):
    """A function of numbers."""

    function: str
    arguments: tuple[Polynomial, ...]


class IndexTerm(NamedTuple):
    """A position as a number."""

    place: Position


class Count(NamedTuple):
    """The value of a symbol, or of an attribute."""

    symbol: object


Factor = Element | FunctionTerm | IndexTerm | Count


class Product(NamedTuple):
    """A number times a sum over bound variables, each with its symbol, of a product."""

    number: int
    bound: tuple[tuple[str, str], ...]
    factors: tuple[Factor, ...]


Polynomial = tuple[Product, ...]


def number(value: int) -> Polynomial:
    """A constant."""
    return (Product(value, (), ()),) if value else ()


def factor(term: Factor) -> Polynomial:
    """One factor alone."""
    return (Product(1, (), (term,)),)


def times(one: Polynomial, other: Polynomial) -> Polynomial:
    """Every product of one with every product of the other; bound variables are all distinct."""
    return tuple(
        Product(a.number * b.number, a.bound + b.bound, a.factors + b.factors)
        for a in one
        for b in other
    )


def total(bound: Sequence[tuple[str, str]], polynomial: Polynomial) -> Polynomial:
    """The sum over index variables."""
    return tuple(p._replace(bound=(*bound, *p.bound)) for p in polynomial)


def canonical(polynomial: Polynomial) -> Polynomial:
    """The form that only depends on the value: alike products joined, variables renamed, sorted.

    >>> x = factor(Element("x", ((0, ("i",)),)))
    >>> y = factor(Element("y", ((0, ("i",)),)))
    >>> canonical(times(x, y)) == canonical(times(y, x))
    True
    """
    return _canonical(polynomial, 0)


def equal(one: Polynomial, other: Polynomial) -> bool:
    """Whether canonical forms are equal; forms that agree but for names need not be made."""
    return _alike(one, other, {}) or canonical(one) == canonical(other)


def _alike(one: Polynomial, other: Polynomial, names: Mapping[str, str]) -> bool:
    """Whether polynomials agree word by word, with the names of one read as those of the other."""
    return len(one) == len(other) and all(
        _alike_products(a, b, names) for a, b in zip(one, other, strict=True)
    )


def _alike_products(one: Product, other: Product, names: Mapping[str, str]) -> bool:
    symbols = [[symbol for _, symbol in product.bound] for product in (one, other)]
    if one.number != other.number or symbols[0] != symbols[1]:
        return False
    both = zip(one.bound, other.bound, strict=True)
    inner = {**names, **{a: b for (a, _), (b, _) in both}}
    return len(one.factors) == len(other.factors) and all(
        _alike_factors(a, b, inner) for a, b in zip(one.factors, other.factors, strict=True)
    )


def _alike_factors(one: Factor, other: Factor, names: Mapping[str, str]) -> bool:
    if isinstance(one, FunctionTerm):
        return (
            isinstance(other, FunctionTerm)
            and one.function == other.function
            and len(one.arguments) == len(other.arguments)
            and all(
                _alike(a, b, names) for a, b in zip(one.arguments, other.arguments, strict=True)
            )
        )
    return type(one) is type(other) and _renamed(one, names) == other


def _canonical(polynomial: Polynomial, depth: int) -> Polynomial:
    joined: dict[tuple[object, ...], int] = {}
    for product in polynomial:
        bound, factors = _canonical_product(_without_idle(product), depth)
        joined[(bound, factors)] = joined.get((bound, factors), 0) + product.number
    products = [
        Product(coefficient, bound, factors)  # type: ignore[arg-type]
        for (bound, factors), coefficient in joined.items()
        if coefficient
    ]
    return tuple(sorted(products, key=repr))


def _without_idle(product: Product) -> Product:
    """A sum over a variable that nobody reads counts its symbol."""
    used = _variables(product.factors)
    idle = [symbol for name, symbol in product.bound if name not in used]
    kept = tuple((name, symbol) for name, symbol in product.bound if name in used)
    return Product(product.number, kept, (*product.factors, *map(Count, idle)))


def _canonical_product(
    product: Product, depth: int
) -> tuple[tuple[tuple[str, str], ...], tuple[Factor, ...]]:
    """The least of all namings of the bound variables, those of one symbol in any order."""
    groups: dict[str, list[str]] = {}
    for name, symbol in product.bound:
        groups.setdefault(symbol, []).append(name)
    symbols = sorted(groups)
    targets = {s: [f"_{depth}.{s}.{n}" for n in range(len(groups[s]))] for s in symbols}
    least: tuple[Factor, ...] | None = None
    for orders in itertools.product(*(itertools.permutations(groups[s]) for s in symbols)):
        names = {
            old: new
            for symbol, order in zip(symbols, orders, strict=True)
            for old, new in zip(order, targets[symbol], strict=True)
        }
        renamed = (
            _canonical_factor(_renamed(factor, names), depth + 1) for factor in product.factors
        )
        factors = tuple(sorted(renamed, key=repr))
        if least is None or repr(factors) < repr(least):
            least = factors
    assert least is not None
    return tuple((name, s) for s in symbols for name in targets[s]), least


def _canonical_factor(factor: Factor, depth: int) -> Factor:
    if isinstance(factor, FunctionTerm):
        return FunctionTerm(factor.function, tuple(_canonical(a, depth) for a in factor.arguments))
    return factor


def _renamed(factor: Factor, names: Mapping[str, str]) -> Factor:
    match factor:
        case Element(tensor=tensor, places=places):
            return Element(tensor, tuple(_moved(place, names) for place in places))
        case IndexTerm(place=place):
            return IndexTerm(_position(place, names))
        case FunctionTerm(function=function, arguments=arguments):
            return FunctionTerm(
                function,
                tuple(
                    tuple(
                        p._replace(factors=tuple(_renamed(f, names) for f in p.factors))
                        for p in argument
                    )
                    for argument in arguments
                ),
            )
        case Count():
            return factor


def _moved(place: Where, names: Mapping[str, str]) -> Where:
    if isinstance(place, Slide):
        return place._replace(
            output=_position(place.output, names), place=_position(place.place, names)
        )
    return _position(place, names)


def _position(place: Position, names: Mapping[str, str]) -> Position:
    return (place[0], tuple(names.get(name, name) for name in place[1]))


def _variables(factors: Sequence[Factor]) -> set[str]:
    names: set[str] = set()
    for factor in factors:
        match factor:
            case Element(places=places):
                for place in places:
                    both = (place.output, place.place) if isinstance(place, Slide) else (place,)
                    names.update(name for position in both for name in position[1])
            case IndexTerm(place=place):
                names.update(place[1])
            case FunctionTerm(arguments=arguments):
                for argument in arguments:
                    for product in argument:
                        names |= _variables(product.factors)
            case Count():
                pass
    return names
