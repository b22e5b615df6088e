"""The second judge: runs a lowered program on real integer arrays and compares with the plain sum.

Enters: steps as device groups, and the groups of devices that are to reduce together. Leaves:
whether every device ends with the sum over its group. Arrays move and add as a communication
library would do it; nothing is known here of contributions, rules or the synthesizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from meshwright.cost.collective import Collective

Array = npt.NDArray[np.int64]
Step = tuple[Collective, Sequence[Sequence[int]]]


class Buffer:
    """What a device holds: some pieces of the payload, by number, ascending."""

    def __init__(self, pieces: Sequence[int], data: Array) -> None:
        self.pieces, self.data = tuple(pieces), data


def run(
    steps: Sequence[Step],
    reduction_groups: Sequence[Sequence[int]],
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
    pieces = len(reduction_groups[0])
    random = np.random.default_rng(seed)
    payload = {
        device: random.integers(-(10**6), 10**6, (pieces, elements))
        for group in reduction_groups
        for device in group
    }
    buffers = {device: Buffer(range(pieces), data.copy()) for device, data in payload.items()}
    try:
        for collective, groups in steps:
            for group in groups:
                _perform(collective, group, buffers)
    except ValueError:
        return False
    return all(
        buffers[device].pieces == tuple(range(pieces))
        and np.array_equal(buffers[device].data, sum(payload[member] for member in group))
        for group in reduction_groups
        for device in group
    )


def _perform(collective: Collective, group: Sequence[int], buffers: dict[int, Buffer]) -> None:
    """Run a collective over one group; ValueError if the members' buffers do not fit together."""
    own = [buffers[device] for device in group]
    root = own[0]
    match collective:
        case Collective.ALL_REDUCE:
            total = _summed(own)
            for device in group:
                buffers[device] = Buffer(root.pieces, total.copy())
        case Collective.REDUCE:
            buffers[group[0]] = Buffer(root.pieces, _summed(own))
            for device in group[1:]:
                buffers[device] = Buffer((), root.data[:0])
        case Collective.REDUCE_SCATTER:
            parts = np.split(_summed(own), len(group))
            share = len(root.pieces) // len(group)
            for position, (device, part) in enumerate(zip(group, parts, strict=True)):
                held = root.pieces[position * share : (position + 1) * share]
                buffers[device] = Buffer(held, part)
        case Collective.ALL_GATHER:
            if len({len(buffer.pieces) for buffer in own}) > 1:
                raise ValueError("members of unequal size")
            numbers = np.array([n for buffer in own for n in buffer.pieces])
            order = np.argsort(numbers, kind="stable")
            gathered = np.concatenate([buffer.data for buffer in own])[order]
            for device in group:
                buffers[device] = Buffer(numbers[order].tolist(), gathered.copy())
        case Collective.BROADCAST:
            for device in group:
                buffers[device] = Buffer(root.pieces, root.data.copy())
        case _:
            assert_never(collective)


def _summed(own: Sequence[Buffer]) -> Array:
    """The element-wise sum, as a library adds buffers: whatever pieces they hold."""
    if len({len(buffer.pieces) for buffer in own}) > 1 or not own[0].pieces:
        raise ValueError("members of unequal size")
    total: Array = np.sum([buffer.data for buffer in own], axis=0, dtype=np.int64)
    return total
