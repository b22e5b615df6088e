"""Device mesh coordinates: mixed-radix numbering of devices by mesh factors. Enters: a cluster.
Leaves: a `MeshSizes`, which numbers devices by the coordinates of its prime factors, the outermost
the most significant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from meshwright.base.integers import from_digits, to_digits
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.layout import factors
from meshwright.sharding.states import States, coordinate_of, is_at

Coordinates = tuple[int, ...]
"""One for each factor."""


class MeshSizes(NamedTuple):
    """The sizes of a machine's factors."""

    sizes: tuple[int, ...]

    @staticmethod
    def of(cluster: Cluster) -> MeshSizes:
        """That of a cluster."""
        return MeshSizes(tuple(factor.size for factor in factors(cluster)))

    def coordinates(self, device: int) -> Coordinates:
        """Where a device is.

        >>> MeshSizes((2, 3)).coordinates(4)
        (1, 1)
        """
        return to_digits(device, self.sizes)

    def device(self, coordinates: Coordinates) -> int:
        """The device at some coordinates."""
        return from_digits(coordinates, self.sizes)

    def along(self, varied: Sequence[int], start: Coordinates) -> Iterator[Coordinates]:
        """All coordinates that differ from some along given factors at most, in order.

        >>> list(MeshSizes((2, 3)).along([1], (1, 2)))
        [(1, 0), (1, 1), (1, 2)]
        """
        for chosen in product(*(range(self.sizes[f]) for f in varied)):
            digits = list(start)
            for f, digit in zip(varied, chosen, strict=True):
                digits[f] = digit
            yield tuple(digits)

    def present(self, states: States) -> Iterator[Coordinates]:
        """All coordinates at which a tensor in these states is."""
        start = tuple(coordinate_of(s) if is_at(s) else 0 for s in states)
        return self.along([f for f, s in enumerate(states) if not is_at(s)], start)


def is_present(states: States, coordinates: Coordinates) -> bool:
    """Whether a tensor in these states is at some coordinates."""
    return all(
        not is_at(state) or coordinate_of(state) == coordinate
        for state, coordinate in zip(states, coordinates, strict=True)
    )
