"""How this room compiles, and the queue of its compiled engines.

A queue is a binary heap of whole numbers in an array that the caller owns, smallest first. An entry
is a time with a task's number in its lowest bits, so that one comparison tells which comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from meshwright.simulate.tasks import Ints

Function = TypeVar("Function", bound=Callable[..., object])


KEPT: dict[str, Any] = {"cache": True, "_nrt": False}
"""Compiled code is kept on disk. It counts no references to arrays, which would take most of the
time of a function that gets dozens of them; it cannot allocate any either."""


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
def bits_of_numbers(n: int) -> int:
    """How many bits the numbers of n tasks need.

    >>> bits_of_numbers(1), bits_of_numbers(1024), bits_of_numbers(1025)
    (0, 10, 11)
    """
    bits = 0
    while (1 << bits) < n:
        bits += 1
    return bits


@inlined
def push(queue: Ints, size: int, entry: int) -> int:
    """Put an entry into a queue; leaves the new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if queue[above] <= entry:
            break
        queue[at] = queue[above]
        at = above
    queue[at] = entry
    return size + 1


@inlined
def drop_first(queue: Ints, size: int) -> int:
    """Take the first entry out of a queue that has one; leaves the new size."""
    size -= 1
    entry = queue[size]
    at, below = 0, 1
    while below < size:
        if below + 1 < size and queue[below + 1] < queue[below]:
            below += 1
        if queue[below] >= entry:
            break
        queue[at] = queue[below]
        at, below = below, 2 * below + 1
    queue[at] = entry
    return size
