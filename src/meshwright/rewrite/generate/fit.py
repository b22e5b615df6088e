"""For which sizes a rule over plain matrices fits. Enters: rules. Leaves: shapes, conditions.

Every dim is one of two sizes, so that every combination can be looked at: it tells which dims have
to be equal, not more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import msgspec

from meshwright.rewrite.definitions import DEFINITIONS, Definition, MisfitError
from meshwright.rewrite.terms import (
    Attribute,
    Condition,
    Plain,
    Rule,
    Size,
    Tensor,
    Term,
    nodes,
    variables,
)
from meshwright.rewrite.types import Type, infer, plain

SIZES = (8, 16)
"""Halved three times by three operators at most."""

_MATRICES = tuple((rows, columns) for rows in SIZES for columns in SIZES)

Shapes = Mapping[str, tuple[int, int]]


def shapes_of(rule: Rule) -> Iterator[Shapes]:
    """Every combination of sizes that the conditions of a rule allow."""
    names = [own.name for own in variables((*rule.source, *rule.target))]
    for shapes in product(_MATRICES, repeat=len(names)):
        given = dict(zip(names, shapes, strict=True))
        if all(_allows(own, given) for own in rule.conditions):
            yield given


def _allows(condition: Condition | Plain, shapes: Shapes) -> bool:
    match condition:
        case Condition(left=Size() as one, relation="=", right=Size() as other):
            return size(one, shapes) == size(other, shapes)
        case _:
            return True


def size(own: Size, shapes: Shapes) -> int:
    """The size of a dim, or the number of copies, of a plain tensor."""
    return shapes[own.tensor][own.dim] if isinstance(own.dim, int) else 1


def bound(rule: Rule, shapes: Shapes) -> dict[str, Attribute]:
    """The names that conditions bind to sizes."""
    return {
        own.left: size(own.right, shapes)
        for own in rule.conditions
        if isinstance(own, Condition) and isinstance(own.right, Size) and isinstance(own.left, str)
    }


def types_of(
    terms: tuple[Tensor, ...],
    rule: Rule,
    shapes: Shapes,
    known: Mapping[str, Definition] = DEFINITIONS,
) -> tuple[Type, ...] | None:
    """The types of terms of a rule; nothing if an operator cannot take its inputs."""
    names = bound(rule, shapes)
    made: dict[Tensor, tuple[Type, ...]] = {}

    def type_of(own: Tensor) -> Type:
        return made[own.node][own.output] if isinstance(own, Term) else plain(shapes[own.name])

    for node in nodes(terms):
        attributes = [names.get(a, a) if isinstance(a, str) else a for a in node.attributes]
        try:
            inputs = [type_of(own) for own in node.inputs]
            made[node] = infer(node.operator, attributes, inputs, known)
        except MisfitError:
            return None
    return tuple(map(type_of, terms))


def with_sizes(rule: Rule, known: Mapping[str, Definition] = DEFINITIONS) -> Rule:
    """A rule with the equalities of sizes that its target needs and its source does not.

    >>> from meshwright.rewrite.text import parse_rule
    >>> rule = parse_rule("r: (relu(a), relu(b)) => (relu(a), relu(split[0, n](concat[0](a, b)).1))"
    ...                   " if n = a.0")
    >>> print(*with_sizes(rule).conditions, sep=", ")
    n = a.0, a.1 = b.1
    """
    source = [own for own in shapes_of(rule) if types_of(rule.source, rule, own, known)]
    both = [own for own in source if types_of(rule.target, rule, own, known)]
    sizes = [Size(own.name, dim) for own in variables(rule.source) for dim in range(2)]
    needed = tuple(
        Condition(one, "=", other)
        for one, other in combinations(sizes, 2)
        if all(size(one, own) == size(other, own) for own in both)
        and not all(size(one, own) == size(other, own) for own in source)
    )
    return msgspec.structs.replace(rule, conditions=rule.conditions + needed)
