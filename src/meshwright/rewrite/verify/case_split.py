"""Case split of a proof: worlds of assumptions on ranks, sizes and degrees. Enters: decisions.
Leaves: worlds with more decided.

A rule speaks of tensors of all ranks, sizes and degrees. A world says nothing of them at first; a
proof asks for what it needs (`ChooseError`: one of several, all of which have to be proved) or
finds what must hold if both sides can be taken at all (`RefineError`), and begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.graph.notation import MisfitError
from meshwright.rewrite.language.terms import (
    Attribute,
    Condition,
    Degree,
    Plain,
    Quantity,
    Rank,
    Relation,
    Rule,
    Size,
    tensors_in,
)
from meshwright.rewrite.language.types import COPY, FRONT, STEP, SUM, axis_number
from meshwright.rewrite.verify.spaces import (
    ONE,
    UNIT,
    Monomial,
    Space,
    VacuousError,
    equate,
    monomial,
    resolve,
    solved,
    unify,
)

Decision = tuple[str, int] | tuple[str, Space]


class ChooseError(Exception):
    """One of several holds, and nobody knows which: all have to be looked at."""

    def __init__(self, *options: Decision) -> None:
        super().__init__(str(options))
        self.options = options


class SymbolicAxis(NamedTuple):
    """An axis of any size and degree."""

    space: Space
    degree: Monomial


class World(NamedTuple):
    """Ranks of tensors and numbers of dims so far, and what symbols stand for."""

    numbers: Mapping[str, int] = {}
    known: Mapping[str, Space] = {}

    def deciding(self, decision: Decision) -> World:
        """The world in which a decision is made."""
        name, value = decision
        if isinstance(value, int):
            return self._replace(numbers={**self.numbers, name: value})
        resolved = resolve(value, self.known)
        if resolved == ((name,),):
            return self
        symbol, space = solved(name, resolved)
        return self._replace(known={**self.known, symbol: space})

    def rank(self, tensor: str, most: int) -> int:
        """The rank of a tensor."""
        key = f"rank {tensor}"
        if key not in self.numbers:
            raise ChooseError(*((key, n) for n in range(most + 1)))
        return self.numbers[key]

    def axis(self, name: Attribute, rank: int) -> int:
        """The number of an axis, which may be a variable."""
        if isinstance(name, str) and name not in ("steps", "copies", "sums"):
            key = f"dim {name}"
            if key not in self.numbers:
                raise ChooseError(*((key, n) for n in range(rank)))
            name = self.numbers[key]
            if name >= rank:
                raise VacuousError
        try:
            return axis_number(name, rank)
        except MisfitError:
            raise VacuousError from None

    def monomial(self, value: Attribute) -> Monomial:
        """A degree, as far as it is known."""
        if isinstance(value, int):
            return Monomial(value)
        return monomial(resolve(((value,),), self.known))

    def resolved(self, axis: SymbolicAxis) -> SymbolicAxis:
        """An axis with everything put in that is known."""
        degree = Monomial(axis.degree.number)
        for symbol in axis.degree.symbols:
            degree *= self.monomial(symbol)
        return SymbolicAxis(resolve(axis.space, self.known), degree)

    def axes_of(self, tensor: str, rank: int) -> tuple[SymbolicAxis, ...]:
        """A tensor of which nothing is known but its rank.

        Copies and sums lie on devices of their own, steps follow each other.
        """
        front = {
            STEP: SymbolicAxis(((f"{tensor}.steps",),), ONE),
            COPY: SymbolicAxis(((f"{tensor}.copies",),), Monomial(1, (f"{tensor}.copies",))),
            SUM: SymbolicAxis(((f"{tensor}.sums",),), Monomial(1, (f"{tensor}.sums",))),
        }
        dims = (
            SymbolicAxis(((f"{tensor}.{k}",),), Monomial(1, (f"{tensor}.{k}.degree",)))
            for k in range(rank)
        )
        return tuple(map(self.resolved, (*(front[a] for a in range(FRONT)), *dims)))


def require(rule: Rule, world: World) -> None:
    """Uses the conditions of a rule; a `VacuousError` where one does not hold.

    A condition on a tensor whose rank is still open waits: worlds are looked at again whenever
    something is decided, and in the end all ranks are.
    """
    for condition in rule.conditions:
        if not all(f"rank {tensor}" in world.numbers for tensor in tensors_in(condition)):
            continue
        if isinstance(condition, Plain):
            axes = world.axes_of(condition.tensor, world.numbers[f"rank {condition.tensor}"])
            for axis in axes:
                equate(axis.degree, ONE)
            for axis in axes[:FRONT]:
                unify(axis.space, UNIT)
        else:
            _require(condition, world)


def _require(condition: Condition, world: World) -> None:
    sides = [_value(side, world) for side in (condition.left, condition.right)]
    if condition.relation == "divides":
        return
    left, right = sides
    if isinstance(left, int) and isinstance(right, int):
        if not _holds(left, condition.relation, right):
            raise VacuousError
    elif condition.relation == "=":
        if isinstance(condition.left, Degree) or isinstance(condition.right, Degree):
            equate(*(Monomial(side) if isinstance(side, int) else monomial(side) for side in sides))
        else:
            unify(*(_numbered(side) if isinstance(side, int) else side for side in sides))
    # What else is said of sizes and degrees is not needed: without it more is proved.


def _numbered(value: int) -> Space:
    """The size of a dim that is a number."""
    return UNIT if value == 1 else ((f"#{value}",),)


def _holds(left: int, relation: Relation, right: int) -> bool:
    return {"=": left == right, "!=": left != right, "<": left < right, "<=": left <= right}[
        relation
    ]


def _value(quantity: Quantity, world: World) -> int | Space:
    """A number where it is decided, else a space of that size."""
    match quantity:
        case int():
            return quantity
        case str():
            key = f"dim {quantity}"
            return (
                world.numbers[key] if key in world.numbers else resolve(((quantity,),), world.known)
            )
        case Rank(tensor=tensor, less=less):
            return world.numbers[f"rank {tensor}"] - less
        case Size(tensor=tensor, dim=dim) | Degree(tensor=tensor, axis=dim):
            rank = world.numbers[f"rank {tensor}"]
            axis = world.axes_of(tensor, rank)[world.axis(dim, rank)]
            if isinstance(quantity, Size):
                return axis.space
            return (axis.degree.symbols,) * axis.degree.number
