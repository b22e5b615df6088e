"""Tensors as elements on devices: a slow judge of resharding, written from what states mean.

A device is a coordinate along each factor. It holds for each dim of a tensor a set of indices, and
of their sums a set of contributions. Every dim has as many indices as the machine has devices, so
that all cuts are even. Collectives are carried out on these sets. Where a dim is numbered anew, an
all-to-all leaves each device the share of what it needs that later gathers do not bring it, and is
right if its group had all of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

WHOLE, PARTIAL = -1, -2

Device = tuple[int, ...]
States = tuple[int, ...]
Dims = tuple[frozenset[int], ...]


class Holding(NamedTuple):
    """What one device has."""

    dims: Dims
    sums: frozenset[Device]
    """The contributions, by the coordinates of the devices that made them."""

    @property
    def elements(self) -> int:
        return math.prod(map(len, self.dims))


class Step(NamedTuple):
    """One collective of a resharding."""

    name: str
    members: frozenset[int]
    every: frozenset[int]
    held: float


class Wrong(Exception):  # noqa: N818
    """The collectives do not lead from one state to the other."""


def place(state: int) -> int | None:
    """The one coordinate at which a tensor is, if so."""
    return -3 - state if state < PARTIAL else None


class Machine:
    """Factors of some sizes, a tensor of some dims, and where it is made and needed."""

    def __init__(self, sizes: Sequence[int], dims: int, produced: States, needed: States) -> None:
        self.sizes, self.dims, self.made, self.needed = tuple(sizes), dims, produced, needed
        self.length = math.prod(sizes)
        self.devices = list(product(*map(range, sizes)))

    def cutting(self, states: States, dim: int) -> list[int]:
        """The factors that cut a dim, the most significant first."""
        return [f for f, state in enumerate(states) if state == dim]

    def part(self, factors: list[int], device: Device) -> frozenset[int]:
        """The indices of a dim that a device has if these factors cut it."""
        indices = frozenset(range(self.length))
        for f in factors:
            indices = self.portion(indices, f, device)
        return indices

    def portion(self, indices: frozenset[int], f: int, device: Device) -> frozenset[int]:
        """An equal part of some indices, by a device's coordinate along a factor."""
        ordered = sorted(indices)
        size = len(ordered) // self.sizes[f]
        return frozenset(ordered[device[f] * size : (device[f] + 1) * size])

    def digit(self, indices: frozenset[int], f: int, device: Device) -> frozenset[int]:
        """Those indices that are needed at a device's coordinate along a factor."""
        cutting = self.cutting(self.needed, self.needed[f])
        unit = self.length // math.prod(self.sizes[g] for g in cutting if g <= f)
        return frozenset(i for i in indices if i // unit % self.sizes[f] == device[f])

    def here(self, states: States, device: Device) -> bool:
        """Whether a device has anything."""
        return all(place(s) in (None, x) for s, x in zip(states, device, strict=True))

    def box(self, states: States, device: Device) -> Dims:
        return tuple(self.part(self.cutting(states, d), device) for d in range(self.dims))

    @property
    def whole_sum(self) -> frozenset[Device]:
        """All contributions that there are."""
        return frozenset(map(self._contribution, self.devices))

    def before(self) -> dict[Device, Holding]:
        """What devices have."""
        return {
            device: Holding(self.box(self.made, device), frozenset([self._contribution(device)]))
            for device in self.devices
            if self.here(self.made, device)
        }

    def _contribution(self, device: Device) -> Device:
        return tuple(x if s == PARTIAL else 0 for x, s in zip(device, self.made, strict=True))

    def satisfied(self, holdings: dict[Device, Holding]) -> bool:
        """Whether every device has what it needs."""
        for device in self.devices:
            if self.here(self.needed, device):
                holding = holdings.get(device)
                if holding is None or holding.sums != self.whole_sum:
                    return False
                box = self.box(self.needed, device)
                if not all(needed <= has for needed, has in zip(box, holding.dims, strict=True)):
                    return False
        return True

    def renumbered(self, dim: int) -> bool:
        """Whether the factors that cut a dim differ before the last that cuts it both times."""
        old, new = self.cutting(self.made, dim), self.cutting(self.needed, dim)
        while old and new and old[0] == new[0]:
            old, new = old[1:], new[1:]
        return bool(old and new)


def carry_out(machine: Machine, steps: Sequence[Step]) -> dict[Device, Holding]:
    """What devices have after the steps; `Wrong` where a step cannot be or says what is not so."""
    return _Run(machine).all(steps)


class _Run:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.holdings = machine.before()
        pairs = list(zip(machine.made, machine.needed, strict=True))
        self.at = [place(n) if m == WHOLE else place(m) for m, n in pairs]
        """The coordinate of each factor at which the data is; copies elsewhere are forgotten."""
        self._forget()
        for f, (m, n) in enumerate(pairs):
            if m == WHOLE and n >= 0:
                self._cut(f)

    def all(self, steps: Sequence[Step]) -> dict[Device, Holding]:
        for step in steps:
            everywhere = {f for f, at in enumerate(self.at) if at is None}
            if step.every != everywhere - step.members:
                raise Wrong(f"{step} runs side by side along {everywhere - step.members}")
            sizes = {holding.elements for holding in self.holdings.values()}
            if sizes != {step.held}:
                raise Wrong(f"{step} with {sizes} elements")
            self._take(step)
        return self.holdings

    def _take(self, step: Step) -> None:
        match step.name:
            case "Send":
                self._spread(step.members)
                self._settle(step.members)
            case "Broadcast":
                self._spread(step.members)
            case "Scatter":
                self._spread(step.members)
                for f in sorted(step.members):
                    self._cut(f)
            case "AllReduce" | "Reduce" | "ReduceScatter":
                self._sum(step.members)
                if step.name == "ReduceScatter":
                    for f in sorted(step.members):
                        self._cut(f)
                elif step.name == "Reduce":
                    self._settle(step.members)
            case "AllGather" | "Gather":
                self._unite(step.members)
                if step.name == "Gather":
                    self._settle(step.members)
            case "AllToAll":
                self._exchange(step.members)
            case _:
                raise Wrong(step.name)

    def _groups(self, members: frozenset[int]) -> Iterator[list[Device]]:
        groups: dict[Device, list[Device]] = {}
        for device in self.machine.devices:
            key = tuple(0 if f in members else x for f, x in enumerate(device))
            groups.setdefault(key, []).append(device)
        yield from groups.values()

    def _spread(self, members: frozenset[int]) -> None:
        """Everybody of a group gets what one of it has."""
        for group in self._groups(members):
            having = [self.holdings[device] for device in group if device in self.holdings]
            if len(having) > 1:
                raise Wrong("several have something to spread")
            for device in group if having else ():
                self.holdings[device] = having[0]
        for f in members:
            if self.at[f] is None:
                raise Wrong("is everywhere already")
            self.at[f] = None

    def _settle(self, members: frozenset[int]) -> None:
        """Only those at the coordinate of the need keep anything."""
        for f in members:
            self.at[f] = place(self.machine.needed[f])
            if self.at[f] is None:
                raise Wrong("is needed everywhere")
        self._forget()

    def _forget(self) -> None:
        self.holdings = {
            device: holding
            for device, holding in self.holdings.items()
            if all(at in (None, x) for at, x in zip(self.at, device, strict=True))
        }

    def _cut(self, f: int) -> None:
        """Each device keeps its part along the dim that a factor is to cut."""
        dim = self.machine.needed[f]
        if dim < 0:
            raise Wrong("is not to be cut")
        for device, holding in self.holdings.items():
            self.holdings[device] = self._share(device, holding, f, dim)

    def _share(self, device: Device, holding: Holding, f: int, dim: int) -> Holding:
        """Of a dim that is numbered anew any part of the size will do, else the part needed."""
        keep = self.machine.portion if self.machine.renumbered(dim) else self.machine.digit
        return self._with(holding, dim, keep(holding.dims[dim], f, device))

    def _with(self, holding: Holding, dim: int, indices: frozenset[int]) -> Holding:
        dims = tuple(indices if d == dim else kept for d, kept in enumerate(holding.dims))
        return Holding(dims, holding.sums)

    def _sum(self, members: frozenset[int]) -> None:
        for group in self._groups(members):
            having = [self.holdings[d] for d in group if d in self.holdings]
            if not having:
                continue
            if len({holding.dims for holding in having}) > 1:
                raise Wrong("sums of different elements")
            sums = frozenset(s for holding in having for s in holding.sums)
            if len(sums) < sum(len(holding.sums) for holding in having):
                raise Wrong("a contribution is counted twice")
            for device in group:
                self.holdings[device] = Holding(having[0].dims, sums)

    def _unite(self, members: frozenset[int]) -> None:
        """Every member gets what all of them have."""
        for group in self._groups(members):
            having = [self.holdings[d] for d in group if d in self.holdings]
            if not having:
                continue
            dims = tuple(
                frozenset(i for holding in having for i in holding.dims[d])
                for d in range(self.machine.dims)
            )
            united = Holding(dims, having[0].sums)
            if united.elements != sum(holding.elements for holding in having):
                raise Wrong("members have the same elements")
            for device in group:
                self.holdings[device] = united

    def _exchange(self, members: frozenset[int]) -> None:
        after: dict[Device, Holding] = {}
        for group in self._groups(members):
            having = {d: self.holdings[d] for d in group if d in self.holdings}
            known = {e for holding in having.values() for e in product(*holding.dims)}
            sent: set[tuple[int, ...]] = set()
            for device, holding in having.items():
                dims = range(self.machine.dims)
                parts = tuple(self._exchanged(device, dim, members, having) for dim in dims)
                gets = Holding(parts, holding.sums)
                elements = set(product(*gets.dims))
                if not elements <= known or gets.elements != holding.elements:
                    raise Wrong("an all-to-all in a group that has not all of it")
                if elements & sent:
                    raise Wrong("an all-to-all that copies")
                sent |= elements
                after[device] = gets
        self.holdings = after

    def _exchanged(
        self, device: Device, dim: int, members: frozenset[int], group: dict[Device, Holding]
    ) -> frozenset[int]:
        """The indices of one dim that a device has after an all-to-all."""
        machine = self.machine
        old, new = machine.cutting(machine.made, dim), machine.cutting(machine.needed, dim)
        if machine.renumbered(dim):
            indices = machine.part(new, device)
            for f in old:
                if machine.needed[f] < 0:
                    indices = machine.portion(indices, f, device)
            return indices
        # Factors that leave the dim bring their parts together, factors that join it cut.
        staying = [f for f in old if f not in members]
        alike = [d for d in group if all(d[f] == device[f] for f in staying)]
        indices = frozenset(i for d in alike for i in group[d].dims[dim])
        for f in new:
            if f in members and f not in old:
                indices = machine.digit(indices, f, device)
        return indices
