"""Collectives in several steps (recursive halving and doubling). Enters: a plan, a device. Leaves:
for each collective over some factors the `ChainLink`s of its chain, one for each step that the
device is in.

A piece is numbered by the member that it is for, or comes from. Along the factors of a step
    ReduceScatter   a member keeps of what it holds the pieces whose members have its coordinates
    AllGather       a member gives what it holds
    Reduce          goes to the coordinates of the root, and those who are there go on
    Broadcast       comes from the coordinates of the root, from those who have it
A collective without a chain in the plan is a chain of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from meshwright.cost.collective import Collective
from meshwright.cost.collective_bytes import sent_bytes
from meshwright.lower.device_mesh import Coordinates, MeshSizes
from meshwright.plan.plan import Plan

Numbers = tuple[int, ...]


class ChainLink(NamedTuple):
    """One collective of a chain."""

    members: Numbers
    """Devices; of what is reduced or broadcast the root comes first."""
    pieces: tuple[Numbers, ...]
    """For each member what is scattered to it, or what it gives; of a whole nothing."""
    place: int
    """That of the device among the members."""


class DeviceChains:
    """What one device does."""

    def __init__(self, plan: Plan, device: int) -> None:
        self._plan, self._machine = plan, MeshSizes.of(plan.cluster)
        self._here = self._machine.coordinates(device)
        self._links = cache(self._made)

    def scattered(self, over: Numbers, size: float) -> tuple[ChainLink, ...]:
        """Of a ReduceScatter along some factors of so many bytes on each device."""
        return self._links(Collective.REDUCE_SCATTER, over, size)

    def gathered(self, over: Numbers, size: float) -> tuple[ChainLink, ...]:
        """Of an AllGather along some factors of so many bytes on each device."""
        return self._links(Collective.ALL_GATHER, over, size)

    def rooted(
        self, kind: Collective, over: Numbers, size: float, root: int
    ) -> tuple[ChainLink, ...]:
        """Of a Reduce to a device, or a Broadcast from it, of so many bytes."""
        at, links = self._machine.coordinates(root), list[ChainLink]()
        steps = self._steps(kind, over, size)
        for number, step in enumerate(steps):
            # Those who have sent what they had, or have not got it yet, take no part.
            others = steps[:number] if kind is Collective.REDUCE else steps[number + 1 :]
            if all(self._here[f] == at[f] for other in others for f in other):
                start = tuple(at[f] if f in step else c for f, c in enumerate(self._here))
                first = self._machine.device(start)
                members = tuple(map(self._machine.device, self._machine.along(step, start)))
                ordered = (first, *(member for member in members if member != first))
                place = ordered.index(self._machine.device(self._here))
                links.append(ChainLink(ordered, ((),) * len(members), place))
        return tuple(links)

    def _made(self, kind: Collective, over: Numbers, size: float) -> tuple[ChainLink, ...]:
        every = list(self._machine.along(over, self._here))
        number = {coordinates: n for n, coordinates in enumerate(every)}
        scatters = kind is Collective.REDUCE_SCATTER
        held = every if scatters else [self._here]
        links = []
        for step in self._steps(kind, over, size):
            members = list(self._machine.along(step, self._here))
            if scatters:
                shares = [
                    [piece for piece in held if piece == _at(piece, step, to)] for to in members
                ]
            else:
                shares = [[_at(piece, step, giver) for piece in held] for giver in members]
            place = members.index(self._here)
            links.append(
                ChainLink(
                    tuple(map(self._machine.device, members)),
                    tuple(tuple(number[piece] for piece in share) for share in shares),
                    place,
                )
            )
            held = shares[place] if scatters else [piece for share in shares for piece in share]
        return tuple(links)

    def _steps(self, kind: Collective, over: Numbers, size: float) -> tuple[Numbers, ...]:
        known = [
            chain
            for chain in self._plan.chains
            if chain.collective == kind.value and set(chain.over) == set(over)
        ]
        if not known:
            return (over,)
        return min(known, key=lambda chain: abs(chain.bytes - size)).steps


def _at(coordinates: Coordinates, step: Numbers, other: Coordinates) -> Coordinates:
    """Some coordinates, but those of another along the factors of a step."""
    return tuple(other[f] if f in step else c for f, c in enumerate(coordinates))


def sent(kind: Collective, links: Sequence[ChainLink], sizes: Sequence[int]) -> int:
    """Bytes that a device sends, given the bytes of each piece."""
    return sum(
        sent_bytes(kind, [sum(sizes[p] for p in pieces) for pieces in link.pieces], link.place)
        for link in links
    )


def sent_bytes_of_tensor(kind: Collective, links: Sequence[ChainLink], size: int) -> int:
    """Bytes that a device sends of something whole."""
    return sum(
        sent_bytes(kind, (size, *(0 for _ in link.members[1:])), link.place) for link in links
    )
