"""Communication volume of a collective: bytes that a member of a group sends. Enters: an operation
and how the whole is cut. Leaves: bytes that leave one member.

For parts of s_0 ... s_{n-1} bytes that make up the whole s = Σ s_i, member p sends
    AllReduce       2s - s_p - s_{p-1}    a ring that scatters the sums, then one that gathers them
    ReduceScatter    s - s_p              a ring: every part but its own, once
    AllGather        s - s_{p+1}          a ring: every part but that of the next member
    Reduce           s, but 0 if p = 0    a chain that ends at the first
    Broadcast        s, but 0 if p = n-1  a chain that begins at the first
This is what `run` does on gloo, and NCCL's rings alike. It knows of no link: `cost.flows` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from meshwright.cost.collective import Collective, Movement, Operation

MOST_IN_A_SEGMENT = 1 << 20
"""Bytes of the largest piece that gloo's AllReduce sends at once."""

SEGMENT = 1 << 19
"""Bytes that `run` sends on at once: small against a message, large against what a send costs."""


def sent_bytes(operation: Operation, sizes: Sequence[int], position: int) -> int:
    """Bytes that the member at a position sends.

    >>> [sent_bytes(Collective.REDUCE_SCATTER, (5, 3, 0), position) for position in range(3)]
    [3, 5, 8]
    """
    if len(sizes) < 2:
        return 0
    whole, share, last = sum(sizes), sizes[position], len(sizes) - 1
    match operation:
        case Collective.ALL_REDUCE:
            return 2 * whole - share - sizes[position - 1]
        case Collective.REDUCE_SCATTER | Movement.ALL_TO_ALL:
            return whole - share
        case Collective.ALL_GATHER:
            return whole - sizes[(position + 1) % len(sizes)]
        case Collective.REDUCE:
            return whole if position > 0 else 0
        case Collective.BROADCAST:
            return whole if position < last else 0
        case Movement.SCATTER:
            return 0 if position else whole - share
        case Movement.GATHER:
            return share if position else 0
        case Movement.SEND:
            return 0 if position else share
        case Movement.SHIFT:
            return share if position < last else 0
        case _:
            assert_never(operation)


def ring_parts(elements: int, item: int, members: int) -> tuple[int, ...]:
    """How gloo's AllReduce cuts its data among the members: bytes of each part.

    Every part has the same number of segments, at least two, and what is past the end is missing.

    >>> ring_parts(10, 4, 2), ring_parts(3, 8, 4)
    ((24, 16), (16, 8, 0, 0))
    """
    whole = elements * item
    most = item * max(1, MOST_IN_A_SEGMENT // item)
    segments = max(-(-whole // most), 2 * members)
    segments += -segments % members
    each = -(-whole // segments)
    part = (each + -each % item) * segments // members
    return tuple(min(part, max(0, whole - part * position)) for position in range(members))
