r"""Resharding: the collectives between two placements of a tensor. Enters: the states in which a
tensor is made and needed. Leaves: the collectives that lead from one to the other, each over some
factors.

Each factor changes by itself, and the changes of one kind run as one collective over all their
factors (in Unity's words: P partition, C combine, R replicate, S sum up, that is Reduce):

    made \ needed   cut along d           whole               at one coordinate
    cut along d     -, or all-to-all      all-gather (C)      gather (C)
    whole           a slice, free (P)     -                   -
    pending sum     reduce-scatter (S P)  all-reduce (S R)    reduce (S)
    at one          scatter (P)           broadcast (R)       -, or send

in an order in which little data moves: what makes pieces smaller first, what makes them larger
last. A dim that several factors cut is numbered with the outermost factor the most significant. If
one joins or leaves outside of others that cut the dim before and of others that cut it after, all
of these exchange their pieces besides: each device sends what it holds to one other, or keeps it;
that crosses each level about as much as an all-to-all, and counts as one. `every` are the factors
along which the same collective runs side by side; along the others only one coordinate takes part.
Compiled; the meaning is tested against sets of elements.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.sharding.states import PARTIAL, WHOLE

ALL_REDUCE: Final = 0
REDUCE_SCATTER: Final = 1
REDUCE: Final = 2
ALL_GATHER: Final = 3
BROADCAST: Final = 4
ALL_TO_ALL: Final = 5
SCATTER: Final = 6
GATHER: Final = 7
SEND: Final = 8
SHIFT: Final = 9

NAMES = (
    "AllReduce", "ReduceScatter", "Reduce", "AllGather", "Broadcast",
    "AllToAll", "Scatter", "Gather", "Send", "Shift",
)  # fmt: skip
"""Of the operations, in the order of their numbers."""

MOST = 10
"""Collectives in one resharding, at most."""

_SLICE: Final = -1
_KEEP: Final = -2
_ORDER = (
    SEND,
    SCATTER,
    REDUCE_SCATTER,
    ALL_REDUCE,
    REDUCE,
    ALL_TO_ALL,
    GATHER,
    BROADCAST,
    ALL_GATHER,
)

Codes = NDArray[np.int8]
"""States, one for each factor."""


@compiled
def change(produced: int, needed: int) -> int:
    """What one factor does, by itself."""
    if produced == needed:
        return _KEEP
    if produced == PARTIAL:
        if needed >= 0:
            return REDUCE_SCATTER
        return ALL_REDUCE if needed == WHOLE else REDUCE
    if produced == WHOLE:
        return _SLICE if needed >= 0 else _KEEP
    if produced >= 0:
        if needed >= 0:
            return ALL_TO_ALL
        return ALL_GATHER if needed == WHOLE else GATHER
    if needed >= 0:
        return SCATTER
    return BROADCAST if needed == WHOLE else SEND


@compiled
def changes(produced: Codes, needed: Codes, out: NDArray[np.int8]) -> int:
    """What every factor does by itself; leaves the factors that exchange pieces, as bits."""
    exchanging = 0
    for f in range(len(produced)):
        out[f] = change(produced[f], needed[f])
        if out[f] == ALL_TO_ALL:
            exchanging |= 1 << f
        if produced[f] != needed[f]:
            exchanging |= _renumbered(produced, needed, f, produced[f])
            exchanging |= _renumbered(produced, needed, f, needed[f])
    return exchanging


@compiled
def _renumbered(produced: Codes, needed: Codes, first: int, dim: int) -> int:
    """The factors from one on that cut a dim before or after, if there are both."""
    if dim < 0:
        return 0
    before, after = 0, 0
    for f in range(first, len(produced)):
        if produced[f] == dim:
            before |= 1 << f
        if needed[f] == dim:
            after |= 1 << f
    return before | after if before and after else 0


@compiled
def resharding(
    produced: Codes,
    needed: Codes,
    sizes: NDArray[np.int64],
    total: float,
    scratch: NDArray[np.int8],
    operation: NDArray[np.int64],
    held: NDArray[np.float64],
) -> int:
    """How many collectives it takes.

    `operation` gets a row for each: its number, the factors of a group and those along which
    groups run side by side, as bits; `held` the bytes on each member before it.
    """
    exchanging = changes(produced, needed, scratch)
    count = 0
    bytes_held = total
    kinds = 1 << ALL_TO_ALL if exchanging else 0
    """What there is to do, as bits."""
    spread = 0
    """Factors on all of whose coordinates there is something to do, as bits."""
    for f in range(len(produced)):
        if scratch[f] >= 0:
            kinds |= 1 << scratch[f]
        if produced[f] >= 0 or scratch[f] == _SLICE:
            bytes_held /= sizes[f]
        dropped = produced[f] == WHOLE and needed[f] < PARTIAL
        if produced[f] >= PARTIAL and not dropped:
            spread |= 1 << f
    for kind in _ORDER:
        if not kinds >> kind & 1:
            continue
        members = exchanging if kind == ALL_TO_ALL else 0
        ways = 1
        for f in range(len(produced)):
            if scratch[f] == kind:
                members |= 1 << f
                ways *= sizes[f]
        operation[count, 0] = kind
        operation[count, 1] = members
        operation[count, 2] = spread & ~members
        held[count] = bytes_held
        count += 1
        if kind in (SCATTER, REDUCE_SCATTER):
            bytes_held /= ways
        elif kind in (ALL_GATHER, GATHER):
            bytes_held *= ways
        if kind in (SCATTER, BROADCAST):
            spread |= members
        elif kind in (REDUCE, GATHER):
            spread &= ~members
    return count


@compiled
def resharding_by_parts(
    produced: Codes,
    needed: Codes,
    sizes: NDArray[np.int64],
    cutting: NDArray[np.bool_],
    total: float,
    scratch: NDArray[np.int8],
    operation: NDArray[np.int64],
    held: NDArray[np.float64],
) -> int:
    """The same, where devices that would send the same, copies along factors that are `cutting`,
    send a part each, which is gathered where it comes (Megatron's scatter-gather).
    """
    count = resharding(produced, needed, sizes, total, scratch, operation, held)
    copies, ways = 0, 1
    for f in range(len(produced)):
        if cutting[f] and produced[f] == WHOLE == needed[f]:
            copies |= 1 << f
            ways *= sizes[f]
    for i in range(count):
        if ways > 1 and operation[i, 0] == SEND and count < MOST:
            held[i] /= ways
            operation[count, 0] = ALL_GATHER
            operation[count, 1], operation[count, 2] = copies, operation[i, 2] & ~copies
            held[count] = held[i]
            return count + 1
    return count
