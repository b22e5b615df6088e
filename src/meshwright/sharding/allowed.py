"""Allowed layouts: filters of roles and degrees that bound a search space. Enters: judges of a role
and of a degree. Leaves: `Allowed`.

What layouts an operator can have follows from its splits and from the machine; what of it somebody
wants is said here, in two parts that searches can build spaces of: roles, each by itself, and
degrees, of a whole layout. Nothing here knows who wants it, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshwright.sharding.layout import Layout, MeshFactor
from meshwright.sharding.unit import OpGroup


class Allowed(NamedTuple):
    """What a search may choose from."""

    role: Callable[[OpGroup, int, str], bool] = lambda unit, factor, role: True
    """Whether a unit may give a factor, by number, a role, as in a layout."""
    degree: Callable[[OpGroup, str], int | None] = lambda unit, split: None
    """How many ways a unit must cut one of its splits, by name; None if it may choose."""

    def layout(self, unit: OpGroup, layout: Layout, mesh_factors: Sequence[MeshFactor]) -> bool:
        r"""Whether a unit may have a layout.

        >>> from meshwright.graph.text import parse_graph
        >>> from meshwright.sharding.units import units
        >>> text = "graph g\ninput x: float32[n=8]\noperator y: y: float32[n=8] = exp(x)"
        >>> (unit,) = units(parse_graph(text))
        >>> machine = (MeshFactor(0, 2), MeshFactor(1, 2))
        >>> halves = Allowed(degree=lambda unit, split: 2)
        >>> layouts = Layout.parse("sample replica"), Layout.parse("sample sample")
        >>> [ANYTHING.layout(unit, layout, machine) for layout in layouts]
        [True, True]
        >>> [halves.layout(unit, layout, machine) for layout in layouts]
        [True, False]
        """
        degrees = layout.degrees(mesh_factors)
        return all(
            self.degree(unit, split.name) in (None, degrees.get(split.name, 1))
            for split in unit.splits
        ) and all(self.role(unit, number, role) for number, role in enumerate(layout.roles))


ANYTHING = Allowed()
"""Every layout that there is."""
