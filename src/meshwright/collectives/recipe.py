"""One device's part of a lowered program. Enters: steps as device groups. Leaves: for one device
its steps in order, each with what every member of its group holds.

Data is cut into as many pieces as devices reduce together, of as equal lengths as its length
allows. What a device holds is some of these pieces, ascending. Whether the program is right is told
by `verify`; nothing is carried out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.collectives.lowering import Groups, LoweredStep
from meshwright.cost.collective import Collective
from meshwright.cost.traffic import ring_parts, sent_bytes

Pieces = tuple[int, ...]


class DeviceStep(NamedTuple):
    """A collective in the group of one device."""

    collective: Collective
    members: tuple[int, ...]
    held: tuple[Pieces, ...]
    """What each member holds before it."""
    kept: tuple[Pieces, ...]
    """What each member holds after it."""


class Recipe(NamedTuple):
    """All that one device does to sum up with the others of its reduction group."""

    device: int
    pieces: int
    """Into how many pieces data is cut."""
    steps: tuple[DeviceStep, ...]

    def lengths(self, elements: int) -> tuple[int, ...]:
        """How many elements each piece has.

        >>> Recipe(0, 4, ()).lengths(10)
        (2, 3, 2, 3)
        """
        ends = [elements * i // self.pieces for i in range(self.pieces + 1)]
        return tuple(end - begin for begin, end in pairwise(ends))

    def sent(self, elements: int, item: int) -> int:
        """Bytes that the device sends to sum up so many elements of so many bytes."""
        return sum(self._sent(step, self.lengths(elements), item) for step in self.steps)

    def _sent(self, step: DeviceStep, lengths: Sequence[int], item: int) -> int:
        held, kept = (
            [sum(lengths[piece] for piece in pieces) * item for pieces in side]
            for side in (step.held, step.kept)
        )
        whole = held[0]
        count = len(step.members)
        sizes = {
            Collective.ALL_REDUCE: ring_parts(whole // item, item, count),
            Collective.REDUCE_SCATTER: kept,
            Collective.ALL_GATHER: held,
        }
        parts = sizes.get(step.collective, (whole, *[0] * (count - 1)))
        return sent_bytes(step.collective, parts, step.members.index(self.device))


def recipe(steps: Sequence[LoweredStep], reduction_groups: Groups, device: int) -> Recipe:
    """What a device does; nothing if it is idle.

    >>> pair = ((0, 1),)
    >>> scatter = LoweredStep(Collective.REDUCE_SCATTER, pair)
    >>> recipe([scatter, LoweredStep(Collective.ALL_GATHER, pair)], pair, 1).steps[1].held
    ((0,), (1,))
    """
    pieces = len(reduction_groups[0])
    holds = {member: tuple(range(pieces)) for group in reduction_groups for member in group}
    own: list[DeviceStep] = []
    for step in steps:
        for group in step.groups:
            held = tuple(holds[member] for member in group)
            kept = tuple(_kept(step.collective, held, place) for place in range(len(group)))
            holds.update(zip(group, kept, strict=True))
            if device in group:
                own.append(DeviceStep(step.collective, group, held, kept))
    return Recipe(device, pieces, tuple(own))


def _kept(collective: Collective, held: Sequence[Pieces], position: int) -> Pieces:
    """What a member holds after a collective."""
    if collective is Collective.REDUCE_SCATTER:
        share = len(held[0]) // len(held)
        return held[0][position * share : (position + 1) * share]
    if collective is Collective.ALL_GATHER:
        return tuple(sorted(piece for pieces in held for piece in pieces))
    if collective is Collective.REDUCE and position > 0:
        return ()
    return held[0]
