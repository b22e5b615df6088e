"""Packed arrays: ragged tables concatenated into one array, with offsets. Enters: arrays. Leaves:
one array, and where each of them begins.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.float64, np.int64)


class PackedArrays(Generic[Number]):
    """Arrays one behind the other, each once."""

    def __init__(self, kind: type[Number]) -> None:
        self._held: list[NDArray[Number]] = [np.zeros(0, kind)]
        self._place: dict[int, int] = {}
        self._used = 0

    def place(self, array: NDArray[Number]) -> int:
        """Where an array begins."""
        if id(array) not in self._place:
            self._place[id(array)] = self._used
            self._held.append(array.reshape(-1))
            self._used += array.size
        return self._place[id(array)]

    @property
    def laid(self) -> NDArray[Number]:
        """All of them."""
        return np.concatenate(self._held)
