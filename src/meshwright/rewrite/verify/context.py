"""Symbolic tensor values, and the proof context that operator laws share. Enters: a world. Leaves:
values, equations, new names.

A `Value` is a tensor of any size: its axes, and what an element is as a polynomial of the inputs'
elements. An element may depend on which copy is asked for only if copies were made different
(`same` is false); an input's copies are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from meshwright.rewrite.language.types import FRONT
from meshwright.rewrite.verify.case_split import SymbolicAxis, World
from meshwright.rewrite.verify.polynomials import Polynomial, Position, Slide, Where
from meshwright.rewrite.verify.spaces import BeyondError, Space, unify

Places = tuple[Where, ...]


class Value(NamedTuple):
    """A tensor: its axes, and its elements."""

    axes: tuple[SymbolicAxis, ...]
    at: Callable[[Places], Polynomial]
    same: bool = True
    """Whether all copies are equal."""
    fronted: bool = True
    """Whether steps, copies and sums were worked out, too."""

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.axes) - FRONT


SLIDE = "slide"
"""How symbols begin that count the places of a window."""


def _slides(space: Space) -> bool:
    return any(symbol.startswith(SLIDE) for segment in space for symbol in segment)


def position(place: Where) -> Position:
    """A place that is no window."""
    if isinstance(place, Slide):
        raise BeyondError("a window over parts")
    return place


class Context:
    """One world, questions about it that are still open, and names that nobody has."""

    def __init__(self, world: World, *, dims_only: bool) -> None:
        """`dims_only`: only what follows for dims is asked; steps, copies and sums mean nothing."""
        self.world, self.dims_only = world, dims_only
        self._open: list[tuple[Space, Space]] = []
        self._names = itertools.count()

    def unify(self, one: Space, other: Space) -> None:
        """Equal spaces; where nobody can tell yet, the question stays open."""
        if one != other and _slides(one) and _slides(other):
            self._open.append((one, other))
            return
        try:
            unify(one, other)
        except BeyondError:
            self._open.append((one, other))

    def settle(self) -> None:
        """Answers what stayed open; a `BeyondError` if it cannot be answered.

        That windows have equally many places follows from equal dims, never the other way.
        """
        for one, other in self._open:
            if _slides(one) and _slides(other):
                raise BeyondError("whether windows have equally many places")
            unify(one, other)

    def fresh(self, space: Space, segment: int) -> tuple[Position, list[tuple[str, str]]]:
        """A position of new bound variables in a segment."""
        names = [f"b{next(self._names)}" for _ in space[segment]]
        return (segment, tuple(names)), list(zip(names, space[segment], strict=True))
