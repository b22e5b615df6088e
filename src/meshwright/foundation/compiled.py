"""How hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled at its first call and kept on disk for the next process."""
    return cast(Function, numba.njit(cache=True)(function))
