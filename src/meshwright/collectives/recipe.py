"""Per-device schedule of a lowered reduction program. Enters: steps as device groups. Leaves: for
one device its steps in order, each with what every member of its group holds.

Data is cut into as many pieces as devices reduce together, of as equal lengths as its length
allows, or in proportion to `weights`. What a device holds is some of these pieces, ascending.
Whether the program is right is told by `verify`; nothing is carried out here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from meshwright.collectives.lowering import Groups, LoweredStep, SharedStep
from meshwright.cost.collective import Collective
from meshwright.cost.collective_bytes import ring_parts, sent_bytes

Pieces = tuple[int, ...]


class DeviceStep(NamedTuple):
    """A collective in the group of one device."""

    collective: Collective
    members: tuple[int, ...]
    held: tuple[Pieces, ...]
    """What each member gives of what it holds before it."""
    kept: tuple[Pieces, ...]
    """What each member has of it after it."""


class Recipe(NamedTuple):
    """All that one device does to sum up with the others of its reduction group."""

    device: int
    pieces: int
    """Into how many pieces data is cut."""
    steps: tuple[DeviceStep, ...]
    weights: tuple[int, ...] = ()
    """What each piece counts, where they are not all alike."""

    def lengths(self, elements: int) -> tuple[int, ...]:
        """How many elements each piece has.

        >>> Recipe(0, 4, ()).lengths(10)
        (2, 3, 2, 3)
        """
        weights = self.weights or (1,) * self.pieces
        reached = tuple(accumulate(weights, initial=0))
        ends = [elements * i // reached[-1] for i in reached]
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


def recipe(
    steps: Sequence[LoweredStep | SharedStep],
    reduction_groups: Groups,
    device: int,
    weights: tuple[int, ...] = (),
) -> Recipe:
    """What a device does; nothing if it is idle.

    >>> pair = ((0, 1),)
    >>> scatter = LoweredStep(Collective.REDUCE_SCATTER, pair)
    >>> recipe([scatter, LoweredStep(Collective.ALL_GATHER, pair)], pair, 1).steps[1].held
    ((0,), (1,))
    """
    counts = weights or (1,) * len(reduction_groups[0])
    every = tuple(range(len(counts)))
    holds = {member: every for group in reduction_groups for member in group}
    device_steps: list[DeviceStep] = []
    for step in steps:
        device_steps += [
            device_step
            for device_step in replayed(step, holds, counts)
            if device in device_step.members
        ]
    return Recipe(device, len(counts), tuple(device_steps), weights)


def replayed(
    step: LoweredStep | SharedStep, holds: dict[int, Pieces], counts: Sequence[int]
) -> list[DeviceStep]:
    """What a step does in each group; changes what devices hold.

    Groups of the same members that act on different pieces are one; groups come in one order, so
    that nobody waits in a circle.
    """
    collective, groups, *rest = step
    acted = rest[0] if rest else (None,) * len(groups)
    by_group: dict[tuple[int, ...], DeviceStep] = {}
    for group, pieces in zip(groups, acted, strict=True):
        held = tuple(_of(holds[member], pieces) for member in group)
        kept = tuple(_kept(collective, held, place, counts) for place in range(len(group)))
        if group in by_group:
            held = tuple(map(_joined, by_group[group].held, held))
            kept = tuple(map(_joined, by_group[group].kept, kept))
        by_group[group] = DeviceStep(collective, group, held, kept)
    if not rest:
        holds.update(
            pair
            for device_step in by_group.values()
            for pair in zip(device_step.members, device_step.kept, strict=True)
        )
        return list(by_group.values())
    for device_step in by_group.values():
        for member, gone, new in zip(
            device_step.members, device_step.held, device_step.kept, strict=True
        ):
            dropped = {*gone}
            holds[member] = _joined([piece for piece in holds[member] if piece not in dropped], new)
    return [by_group[group] for group in sorted(by_group)]


def _of(held: Pieces, pieces: Sequence[int] | None) -> Pieces:
    return held if pieces is None else tuple(piece for piece in pieces if piece in held)


def _joined(some: Sequence[int], more: Sequence[int]) -> Pieces:
    return tuple(sorted((*some, *more)))


def _kept(
    collective: Collective, held: Sequence[Pieces], position: int, counts: Sequence[int]
) -> Pieces:
    """What a member holds after a collective."""
    if collective is Collective.REDUCE_SCATTER:
        ends = tuple(accumulate((counts[piece] for piece in held[0]), initial=0))
        cuts = (ends[-1] * number // len(held) for number in (position, position + 1))
        first, last = (bisect_left(ends, cut) for cut in cuts)
        return held[0][first:last]
    if collective is Collective.ALL_GATHER:
        return tuple(sorted(piece for pieces in held for piece in pieces))
    if collective is Collective.REDUCE and position > 0:
        return ()
    return held[0]
