"""Gradient accumulation. Enters: gradients by key, one by one. Leaves: their sums.

The first gradient of a key may belong to others and is never written to; once two are added, the
sum is ours, and what comes later is added in place.
"""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Generic, TypeVar

from torch import Tensor

Key = TypeVar("Key")


class GradientAccumulator(Generic[Key]):
    """Sums by key."""

    def __init__(self) -> None:
        self._sums: dict[Key, Tensor] = {}
        self._owned: set[Key] = set()

    def add(self, key: Key, gradient: Tensor) -> None:
        """One more."""
        if key not in self._sums:
            self._sums[key] = gradient
        elif key in self._owned:
            self._sums[key] += gradient
        else:
            self._sums[key] = self._sums[key] + gradient
            self._owned.add(key)

    def accumulate(self, key: Key, gradient: Tensor) -> Tensor:
        """One more of a sum that is ours from the first on; the sum so far."""
        if key not in self._sums:
            self._sums[key] = gradient.clone()
            self._owned.add(key)
        else:
            self.add(key, gradient)
        return self._sums[key]

    def items(self) -> ItemsView[Key, Tensor]:
        """The sums so far."""
        return self._sums.items()

    def taken(self, key: Key) -> Tensor | None:
        """The sum, which is forgotten here; None if nothing came."""
        self._owned.discard(key)
        return self._sums.pop(key, None)
