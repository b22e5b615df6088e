"""Second judge of reduction programs: run on real integer arrays, compared with the plain sum.

Enters: steps as device groups, and the groups of devices that are to reduce together. Leaves:
whether every device ends with the sum over its group. Arrays move and add as a communication
library would do it; nothing is known here of contributions, rules or the synthesizer.

Pieces may count differently (`weights`: an equal share is one of equal weight), and a group may
take some of the pieces of its members only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from meshwright.cost.collective import Collective

Array = npt.NDArray[np.int64]
Step = (
    tuple[Collective, Sequence[Sequence[int]]]
    | tuple[Collective, Sequence[Sequence[int]], Sequence[Sequence[int] | None]]
)
"""A collective over groups; and which pieces each group takes, if not all."""


class Buffer:
    """What a device holds: some pieces of the payload, by number, ascending."""

    def __init__(self, pieces: Sequence[int], data: Array) -> None:
        self.pieces, self.data = tuple(pieces), data


def run(
    steps: Sequence[Step],
    reduction_groups: Sequence[Sequence[int]],
    weights: Sequence[int] | None = None,
    *,
    elements: int = 2,
    seed: int = 0,
) -> bool:
    """Whether the program leaves the sum over its reduction group on every device.

    >>> pair = [(0, 1)]
    >>> run([(Collective.REDUCE, pair), (Collective.BROADCAST, pair)], pair)
    True
    >>> run([(Collective.REDUCE, pair)], pair)
    False
    """
    counts = [1] * len(reduction_groups[0]) if weights is None else weights
    pieces = len(counts)
    random = np.random.default_rng(seed)
    payload = {
        device: random.integers(-(10**6), 10**6, (pieces, elements))
        for group in reduction_groups
        for device in group
    }
    buffers = {device: Buffer(range(pieces), data.copy()) for device, data in payload.items()}
    try:
        for collective, groups, *rest in steps:
            taken = rest[0] if rest else [None] * len(groups)
            for group, selection in zip(groups, taken, strict=True):
                if selection is None:
                    _perform(collective, group, buffers, counts)
                else:
                    some = {device: _cut_out(buffers[device], selection) for device in group}
                    _perform(collective, group, some, counts)
                    for device in group:
                        buffers[device] = _put_back(buffers[device], selection, some[device])
    except ValueError:
        return False
    return all(
        buffers[device].pieces == tuple(range(pieces))
        and np.array_equal(buffers[device].data, sum(payload[member] for member in group))
        for group in reduction_groups
        for device in group
    )


def _cut_out(buffer: Buffer, pieces: Sequence[int]) -> Buffer:
    """What a buffer has of some pieces."""
    places = [place for place, piece in enumerate(buffer.pieces) if piece in pieces]
    return Buffer([buffer.pieces[place] for place in places], buffer.data[places])


def _put_back(buffer: Buffer, pieces: Sequence[int], replacement: Buffer) -> Buffer:
    """A buffer with some pieces replaced."""
    rest = _cut_out(buffer, [piece for piece in buffer.pieces if piece not in pieces])
    numbers = np.array((*rest.pieces, *replacement.pieces), dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    return Buffer(numbers[order].tolist(), np.concatenate([rest.data, replacement.data])[order])


def _perform(
    collective: Collective,
    group: Sequence[int],
    buffers: dict[int, Buffer],
    counts: Sequence[int],
) -> None:
    """Run a collective over one group; ValueError if the members' buffers do not fit together."""
    members = [buffers[device] for device in group]
    root = members[0]
    match collective:
        case Collective.ALL_REDUCE:
            total = _summed(members)
            for device in group:
                buffers[device] = Buffer(root.pieces, total.copy())
        case Collective.REDUCE:
            buffers[group[0]] = Buffer(root.pieces, _summed(members))
            for device in group[1:]:
                buffers[device] = Buffer((), root.data[:0])
        case Collective.REDUCE_SCATTER:
            total, begin = _summed(members), 0
            share = sum(counts[piece] for piece in root.pieces) // len(group)
            for device in group:
                end = begin
                while end < len(root.pieces) and _size(root.pieces[begin:end], counts) < share:
                    end += 1
                if _size(root.pieces[begin:end], counts) != share:
                    raise ValueError("pieces that no cut shares out evenly")
                buffers[device] = Buffer(root.pieces[begin:end], total[begin:end].copy())
                begin = end
            if begin != len(root.pieces):
                raise ValueError("pieces that no cut shares out evenly")
        case Collective.ALL_GATHER:
            if len({_size(buffer.pieces, counts) for buffer in members}) > 1:
                raise ValueError("members of unequal size")
            numbers = np.array([n for buffer in members for n in buffer.pieces])
            order = np.argsort(numbers, kind="stable")
            gathered = np.concatenate([buffer.data for buffer in members])[order]
            for device in group:
                buffers[device] = Buffer(numbers[order].tolist(), gathered.copy())
        case Collective.BROADCAST:
            for device in group:
                buffers[device] = Buffer(root.pieces, root.data.copy())
        case _:
            assert_never(collective)


def _size(pieces: Sequence[int], counts: Sequence[int]) -> int:
    return sum(counts[piece] for piece in pieces)


def _summed(members: Sequence[Buffer]) -> Array:
    """The element-wise sum, as a library adds buffers: whatever pieces they hold."""
    if len({len(buffer.pieces) for buffer in members}) > 1 or not members[0].pieces:
        raise ValueError("members of unequal size")
    total: Array = np.sum([buffer.data for buffer in members], axis=0, dtype=np.int64)
    return total
