"""Tensor placements (Shard, Replicate, Partial, At) as boxes on devices. Enters: states along every
factor. Leaves: `TensorPlacement`, which knows the box of every device.

Boxes are told within the part of the tensor that one micro-batch has. Most are equal cuts of the
dims; those of windows reach into their neighbours', and the last of a cut may be shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from meshwright.base.integers import from_digits
from meshwright.graph.pieces import Box
from meshwright.lower.device_mesh import Coordinates, MeshSizes, is_present
from meshwright.sharding.states import PARTIAL, WHOLE, States


class TensorPlacement(NamedTuple):
    """A tensor in pieces."""

    machine: MeshSizes
    shape: tuple[int, ...]
    states: States
    exact: Callable[[Coordinates], Box] | None = None
    """The box at some coordinates, where it is no equal cut."""

    def box(self, coordinates: Coordinates) -> Box:
        """What the device at some coordinates holds; it must be present."""
        if self.exact is not None:
            return self.exact(coordinates)
        return tuple(self._range(dim, size, coordinates) for dim, size in enumerate(self.shape))

    def holds(self, coordinates: Coordinates) -> bool:
        """Whether the device at some coordinates holds any of it."""
        return is_present(self.states, coordinates)

    def terms(self) -> Iterator[Coordinates]:
        """One holder of each piece and of each part of a pending sum."""
        apart = [f for f, state in enumerate(self.states) if state >= 0 or state == PARTIAL]
        return self.machine.along(apart, next(self.machine.present(self.states)))

    def copy_near(self, term: Coordinates, reader: Coordinates) -> Coordinates:
        """The holder of what `term` holds that a reader fetches it from: itself, if it is one."""
        return tuple(
            target if state == WHOLE else source
            for state, source, target in zip(self.states, term, reader, strict=True)
        )

    def equal_cuts(self) -> TensorPlacement:
        """The same states with equal cuts."""
        return self._replace(exact=None)

    @property
    def divides(self) -> bool:
        """Whether the states cut all dims into equal parts."""
        return all(
            size % ways == 0
            for dim, size in enumerate(self.shape)
            for ways in [self._ways(self._cutting(dim))]
        )

    def _cutting(self, dim: int) -> list[int]:
        return [f for f, state in enumerate(self.states) if state == dim]

    def _ways(self, cutting: Sequence[int]) -> int:
        return math.prod(self.machine.sizes[f] for f in cutting)

    def _range(self, dim: int, size: int, coordinates: Coordinates) -> tuple[int, int]:
        cutting = self._cutting(dim)
        each = size // self._ways(cutting)
        number = from_digits(
            [coordinates[f] for f in cutting], [self.machine.sizes[f] for f in cutting]
        )
        return number * each, (number + 1) * each
