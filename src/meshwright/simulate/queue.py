"""The queue of the compiled engines: a binary heap of whole numbers in an array of the caller's.

An entry is a time with a task's number in its lowest bits, so that one comparison tells which comes
first.
"""

from __future__ import annotations

from meshwright.base.compiled import compiled, inlined
from meshwright.simulate.tasks import Ints


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
