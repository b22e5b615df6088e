"""How hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled at its first call and kept on disk for the next process.

    It must not make arrays: without counting references to them (`_nrt`), which takes most of the
    time where records of arrays are handed on, nobody would give them back.
    """
    return cast(Function, numba.njit(cache=True, _nrt=False)(function))


@compiled
def copy_row(source: NDArray[Any], row: int, target: NDArray[Any], at: int) -> None:
    """Copy a row of one matrix into another; assigning slices would make an array."""
    for column in range(source.shape[1]):
        target[at, column] = source[row, column]
