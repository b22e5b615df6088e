"""How hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled at its first call and kept on disk for the next process.

    It must not make arrays: without counting references to them (`_nrt`), which takes most of the
    time where records of arrays are handed on, nobody would give them back.
    """
    return cast(Function, numba.njit(cache=True, _nrt=False)(function))
