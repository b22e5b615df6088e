"""Evaluation of rule conditions on types and values of symbols. Enters: conditions, types of
tensors, values of symbols. Leaves: numbers, yes or no; a `MisfitError` where a condition speaks of
what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.graph.notation import MisfitError
from meshwright.rewrite.language.terms import (
    Condition,
    Degree,
    Plain,
    Quantity,
    Rank,
    Setting,
    Size,
)
from meshwright.rewrite.language.types import FRONT, Type, TypedAxis, axis_number, rank

Bound = Mapping[str, Setting]
"""Values of symbols."""


def quantity(expression: Quantity, types: Mapping[str, Type], bound: Bound) -> Setting:
    """The value of what a condition speaks of."""
    match expression:
        case int():
            return expression
        case str():
            if expression not in bound:
                raise MisfitError(f"{expression} is not bound")
            return bound[expression]
        case Rank(tensor=tensor, less=less):
            return rank(types[tensor]) - less
        case Size(tensor=tensor, dim=dim) | Degree(tensor=tensor, axis=dim):
            name = bound.get(dim, dim) if isinstance(dim, str) else dim
            if not isinstance(name, int | str):
                raise MisfitError(f"{name} is no dim")
            axis = types[tensor][axis_number(name, rank(types[tensor]))]
            return axis.size if isinstance(expression, Size) else axis.degree


def holds(condition: Condition | Plain, types: Mapping[str, Type], bound: Bound) -> bool:
    """Whether a condition holds.

    >>> from meshwright.rewrite.language.types import plain
    >>> holds(Condition("d", "divides", Size("x", 0)), {"x": plain((4, 8))}, {"d": 2})
    True
    """
    if isinstance(condition, Plain):
        return _is_plain(types[condition.tensor])
    left, right = (quantity(side, types, bound) for side in (condition.left, condition.right))
    match condition.relation:
        case "=":
            return left == right
        case "!=":
            return left != right
    if not isinstance(left, int) or not isinstance(right, int):
        raise MisfitError(f"{left} and {right} are not both numbers")
    match condition.relation:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case "divides":
            return left > 0 and right % left == 0


def _is_plain(type_: Type) -> bool:
    return type_ == (TypedAxis(1),) * FRONT + tuple(TypedAxis(axis.size) for axis in type_[FRONT:])
