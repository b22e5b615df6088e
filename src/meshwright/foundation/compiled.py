"""How hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])

KEPT: dict[str, Any] = {"cache": True, "_nrt": False}
"""Compiled code is kept on disk. It counts no references to arrays, which would take most of the
time of a function that gets dozens of them; it cannot make any either."""


def compiled(function: Function) -> Function:
    """The function, compiled at its first call.

    What it calls is compiled into it: after a change of that, delete `__pycache__`.
    """
    return cast(Function, numba.njit(**KEPT)(function))


def inlined(function: Function) -> Function:
    """A part of compiled functions: its code goes into theirs, and it has no door for Python."""
    alone: dict[str, Any] = {
        "forceinline": True,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return cast(Function, numba.njit(**KEPT, **alone)(function))


@compiled
def copy_row(source: NDArray[Any], row: int, target: NDArray[Any], at: int) -> None:
    """Copy a row of one matrix into another; assigning slices would make an array."""
    for column in range(source.shape[1]):
        target[at, column] = source[row, column]
