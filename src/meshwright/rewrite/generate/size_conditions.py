"""Size conditions of generated rules, inferred by trying matrices of two sizes. Enters: rules.
Leaves: shapes, conditions.

Every dim is one of two sizes, so that every combination can be looked at: it tells which dims have
to be equal, not more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import msgspec

from meshwright.graph.notation import Definition, MisfitError
from meshwright.rewrite.language.conditions import holds, quantity
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Attribute, Condition, Rule, Size, Tensor, variables
from meshwright.rewrite.language.types import Type, plain
from meshwright.rewrite.verify import sample

SIZES = (8, 16)
"""Halved three times by three operators at most."""

_MATRICES = tuple(plain((rows, columns)) for rows in SIZES for columns in SIZES)

Types = Mapping[str, Type]
"""By the names of variables."""


def matrices(rule: Rule) -> Iterator[Types]:
    """Plain matrices of all combinations of sizes that the conditions of a rule allow."""
    names = [variable.name for variable in variables((*rule.source, *rule.target))]
    for types in product(_MATRICES, repeat=len(names)):
        by_name = dict(zip(names, types, strict=True))
        if all(holds(condition, by_name, bound(rule, by_name)) for condition in rule.conditions):
            yield by_name


def bound(rule: Rule, types: Types) -> dict[str, Attribute]:
    """The names that conditions bind to sizes."""
    return {
        condition.left: _size(condition.right, types)
        for condition in rule.conditions
        if isinstance(condition, Condition)
        and isinstance(condition.right, Size)
        and isinstance(condition.left, str)
    }


def _size(size: Size, types: Types) -> int:
    value = quantity(size, types, {})
    assert isinstance(value, int), "a size is a number"
    return value


def fit(
    terms: tuple[Tensor, ...],
    rule: Rule,
    types: Types,
    known: Mapping[str, Definition] = DEFINITIONS,
) -> tuple[Type, ...] | None:
    """The types of terms of a rule; nothing if an operator cannot take its inputs."""
    try:
        return sample.types_of(terms, types, bound(rule, types), known)
    except MisfitError:
        return None


def with_sizes(rule: Rule, known: Mapping[str, Definition] = DEFINITIONS) -> Rule:
    """A rule with the equalities of sizes that its target needs and its source does not.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> rule = parse_rule("r: (relu(a), relu(b)) => (relu(a), relu(split[0, n](concat[0](a, b)).1))"
    ...                   " if n = a.0")
    >>> print(*with_sizes(rule).conditions, sep=", ")
    n = a.0, a.1 = b.1
    """
    source = [types for types in matrices(rule) if fit(rule.source, rule, types, known)]
    both = [types for types in source if fit(rule.target, rule, types, known)]
    sizes = [Size(variable.name, dim) for variable in variables(rule.source) for dim in range(2)]
    needed = tuple(
        condition
        for one, other in combinations(sizes, 2)
        for condition in (Condition(one, "=", other),)
        if all(holds(condition, types, {}) for types in both)
        and not all(holds(condition, types, {}) for types in source)
    )
    return msgspec.structs.replace(rule, conditions=rule.conditions + needed)
