"""Interning: equal keys numbered in the order of their first appearance."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)


def grouped(keys: Iterable[Key]) -> tuple[list[Key], NDArray[np.int64]]:
    """The different keys in the order in which they come, and for each key which of them it is.

    >>> grouped("abca")
    (['a', 'b', 'c'], array([0, 1, 2, 0]))
    """
    number: dict[Key, int] = {}
    which = [number.setdefault(key, len(number)) for key in keys]
    return list(number), np.array(which, np.int64)
