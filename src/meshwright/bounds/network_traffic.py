"""Bytes that must cross the outermost network (bisection traffic), whatever the collectives.
Enters: units, bundles, a cluster. Leaves: for each tensor that is carried, or whose gradient is,
what it moves as a function of two layouts.

Let A be the number of positions of the outermost level that has several (nodes, say). Along its
factors a tensor of B bytes is a pending sum of p parts, and every element of it lies on c positions
(whole, or copied). To get from (p, c) to (p', c') its elements have to be summed up, which takes
p - 1 transfers each, and every copy more takes one:
    bytes >= B ((p - 1) + max(0, c' - c))  >=  B ((p - 1) + l (c' - c))     for any l in [0, 1]
whatever collectives are used; no reader takes a pending sum. As every link of the level takes part
in proportion, it is held for bytes / (instances x bandwidth) on average. Gradients of parameters
go from their readers to where they lie; if they are sharded (ZeRO), what is updated is gathered
from there, which adds up to the same. What several units read alike is carried once, so each of n
readings counts 1/n. In l the bound is a sum of functions of one layout each: l says what a copy
is worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integers import divisors
from meshwright.bounds.degrees import ShardingDegrees
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.cost.backend import NCCL, Backend, Shape
from meshwright.cost.double_tree import tree_depth
from meshwright.lower.bundles import TensorEdge
from meshwright.sharding.states import PARTIAL, WHOLE, State
from meshwright.sharding.unit import BoundaryTensor, OpGroup
from meshwright.simulate.collective_table import NANO

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
States = tuple[State, ...]


class NetworkTraffic(NamedTuple):
    """Links that everything has to cross that moves between some positions."""

    name: str
    positions: int
    pace: float
    """Nanoseconds for every byte that crosses it; 0 if it cannot be told."""
    delay: float = 0.0
    """Nanoseconds that whatever crosses it takes besides, at least."""
    sums: Mapping[int, float] = MappingProxyType({1: 0.0})
    """The same for a sum over so many positions that all of them have afterwards."""
    chains: Mapping[int, float] = MappingProxyType({1: 0.0})
    """The same for several such sums, one after the other, whose positions multiply to so many."""


def networks(cluster: Cluster, backend: Backend = NCCL) -> tuple[NetworkTraffic, ...]:
    """The outermost level that has several positions; and all levels together, across which every
    device is a position.

    >>> [network.positions for network in networks(Cluster.named("summit", node=4))]
    [4, 24]
    """
    depth = next((n for n, size in enumerate(cluster.hierarchy) if size > 1), None)
    if depth is None:
        return (NetworkTraffic("nothing", 1, 0.0),)
    inner = cluster.levels[-1]
    by_position = cluster.wired or any(link.outward or link.hub for link in inner.links)
    level = cluster.levels[depth]
    distinct = not (by_position and level is inner) and not any(link.hub for link in level.links)
    paces = [NANO / _rate(cluster, link) for link in level.links] if distinct else []
    launch, positions = backend.launch * NANO, cluster.hierarchy[depth]
    hops = [_latency(sublevel) * NANO for sublevel in cluster.levels[depth:]]
    if by_position:
        hops[-1] = 0.0
    trees = cluster.machine is not None and depth <= cluster.level_index(cluster.machine)
    sums = _sums(positions, launch, hops[0], backend, trees=trees)
    chains = _chains(sums)
    # Where positions differ, a program may sum up along one factor of a level after the other.
    told_apart = chains if cluster.wired else sums
    pace = max(paces, default=0.0)
    outer = NetworkTraffic(level.name, positions, pace, launch + hops[0], told_apart, chains)
    links = [link for sublevel in cluster.levels[depth:] for link in sublevel.links]
    if by_position or level is inner or any(link.hub for link in links):
        return (outer,)
    total = sum(_rate(cluster, link) for link in links)
    least = min(hops)
    chains = _chains(_sums(cluster.devices, launch, least, backend, trees=trees))
    pace = NANO / total
    return outer, NetworkTraffic("all links", cluster.devices, pace, launch + least, chains, chains)


def _latency(level: Level) -> float:
    return sum(link.latency for link in level.links)


def _sums(
    positions: int, launch: float, hop: float, backend: Backend, *, trees: bool
) -> dict[int, float]:
    """By how many positions there are to sum over in one step: what it takes at least.

    A sum goes there and back: straight to everybody, along trees, as between machines, or from one
    to the next.
    """
    shapes = {phase.shape for phases in backend.table.values() for phase in phases}

    def hops(step: int) -> int:
        if Shape.ALL_TO_ALL in shapes:
            return 1
        return tree_depth(step) if trees or Shape.BINOMIAL in shapes else step - 1

    costs = {step: launch + 2 * hop * hops(step) for step in divisors(positions)}
    return costs | {1: 0.0}


def _chains(sums: Mapping[int, float]) -> dict[int, float]:
    """The least that sums one after the other take, by the product of their positions."""
    least = {1: 0.0}
    for product in sorted(sums)[1:]:
        steps = [step for step in sums if step > 1 and product % step == 0]
        least[product] = min(least[product // step] + sums[step] for step in steps)
    return least


def _rate(cluster: Cluster, link: Link) -> float:
    """Bytes per second of all instances of a link."""
    return _instances(cluster, link) * max(link.out, link.into)


def _instances(cluster: Cluster, link: Link) -> float:
    blocks = dict(cluster.levels[-1].blocks)
    if link.per in blocks:
        return cluster.devices / blocks[link.per]
    return prod(cluster.hierarchy[: cluster.owner_level(link.per) + 1])


class ReaderExchange(NamedTuple):
    """What parts of a unit exchange among themselves when they read a tensor, by split."""

    sums: tuple[int, ...]
    """Splits along which statistics are summed."""
    rows: tuple[int, ...]
    """Splits along which parts exchange rows, each message by itself."""


class TensorTransfers(NamedTuple):
    """Tensors on their way: from one slot to another. A slot is a unit and its states of a tensor,
    by split.
    """

    slots: tuple[tuple[States, ...], ...]
    """[units]"""
    first: Whole
    """[units + 1] the number of a unit's first slot."""
    source: Whole
    """[trips] slots."""
    target: Whole
    units: tuple[tuple[int, int], ...]
    """[trips] the units."""
    bytes: Floats
    """[trips] of a micro-batch."""
    times: Floats
    """[trips] how often it counts for what the network does in a step."""
    backward: Flags
    """[trips] whether it is a gradient."""
    parameter: Flags
    """[trips] whether it is the gradient of a parameter."""
    beside: tuple[ReaderExchange | None, ...]
    """[trips] what its reader, or where it goes back who has read it, exchanges besides."""

    def reads(self) -> Iterator[tuple[int, int, int, bool]]:
        """The trips that a unit waits for: number, units, whether it is a gradient."""
        for trip, (one, other) in enumerate(self.units):
            if not self.parameter[trip]:
                yield trip, one, other, bool(self.backward[trip])

    def sums(self) -> Iterator[tuple[int, int]]:
        """The trips of gradients of parameters: number, unit that makes them."""
        for trip, (one, _) in enumerate(self.units):
            if self.parameter[trip]:
                yield trip, one


class _Slots:
    def __init__(self, units: int) -> None:
        self.found: list[dict[States, int]] = [{} for _ in range(units)]

    def slot(self, unit: int, states: States) -> tuple[int, int]:
        numbers = self.found[unit]
        return unit, numbers.setdefault(states, len(numbers))


_Row = tuple[tuple[int, int], tuple[int, int], float, float, bool, bool, ReaderExchange | None]


def trips(
    units: Sequence[OpGroup], bundles: Sequence[TensorEdge], micro_batches: int
) -> TensorTransfers:
    """Everything that is carried."""
    slots = _Slots(len(units))
    rows: list[_Row] = []
    for bundle in bundles:
        often = 1 if bundle.parameters else micro_batches
        for number, source in enumerate(bundle.sources):
            consumers = [consumer for consumer in bundle.consumers if consumer.tensor == number]
            size, home = float(source.bytes // often), source.boundary.backward
            for consumer in () if bundle.parameters else consumers:
                one = slots.slot(source.maker, source.boundary.forward)
                other = slots.slot(consumer.unit, consumer.boundary.forward)
                rows.append(
                    (
                        one,
                        other,
                        size,
                        often / len(consumers),
                        False,
                        False,
                        _beside(consumer.boundary, backward=False),
                    )
                )
            returning = [
                consumer
                for consumer in consumers
                if consumer.boundary.backward is not None and units[consumer.unit].flows
            ]
            for consumer in returning if home is not None else ():
                one = slots.slot(consumer.unit, consumer.boundary.backward or ())
                other = slots.slot(source.maker, home or ())
                among = None if bundle.parameters else _beside(consumer.boundary, backward=True)
                rows.append(
                    (one, other, size, often / len(returning), True, bundle.parameters, among)
                )
    first = np.concatenate(
        ([0], np.cumsum([len(unit_slots) for unit_slots in slots.found]))
    ).astype(np.int64)
    columns = zip(*rows, strict=True) if rows else ((),) * 7
    source_, target, size_, times, backwards, kept, beside = columns
    return TensorTransfers(
        slots=tuple(tuple(unit_slots) for unit_slots in slots.found),
        first=first,
        source=np.array([first[unit] + slot for unit, slot in source_], np.int64),
        target=np.array([first[unit] + slot for unit, slot in target], np.int64),
        units=tuple((one, other) for (one, _), (other, _) in zip(source_, target, strict=True)),
        bytes=np.array(size_, np.float64),
        times=np.array(times, np.float64),
        backward=np.array(backwards, np.bool_),
        parameter=np.array(kept, np.bool_),
        beside=tuple(beside),
    )


def _beside(boundary: BoundaryTensor, *, backward: bool) -> ReaderExchange | None:
    sums = tuple(
        split
        for split, statistic in enumerate(boundary.statistics)
        if statistic is not None and (statistic.backward if backward else statistic.forward)
    )
    halos, tokens = (
        tuple(split for split, amount in enumerate(amounts) if amount)
        for amounts in (boundary.halo, boundary.exchanged)
    )
    rows = (*halos, *tokens, *tokens)
    return ReaderExchange(sums, rows) if sums or rows else None


class MeshAssignment(NamedTuple):
    """The ways of a unit with their degrees across the network."""

    way: Whole
    """[seats]"""
    copies: Floats
    """[slots, seats]"""
    parts: Floats
    """[slots, seats]"""
    across: Whole
    """[seats, splits + 1] the degrees that lie across the network, and how often all is copied."""


def seats(
    ways: ShardingDegrees, slots: tuple[States, ...], devices: int, positions: int
) -> MeshAssignment:
    """Every choice of the degrees that lie across the network, each with the ways that it leaves.

    Of the ways that use as many devices one is left out if another is as fast in both passes.
    """
    splits = ways.degrees.shape[1]
    order = np.lexsort((ways.backward, ways.forward, ways.share))
    _, group = np.unique(ways.share[order], return_inverse=True)
    # Falls from group to group, so that each begins anew.
    falling = ways.backward[order] - group * (ways.backward.max(initial=0.0) + 1.0)
    degrees, product = ways.degrees[order], ways.degrees[order].prod(axis=1)
    way: list[Whole] = []
    across: list[tuple[int, ...]] = []
    possible = [
        [degree for degree in divisors(positions) if (column % degree == 0).any()]
        for column in degrees.T
    ]
    for choice in _across(possible, positions):
        taken = prod(choice)
        fits = (degrees % np.array(choice, np.int64) == 0).all(axis=1)
        fits &= (product % taken == 0) & (
            devices // positions % np.maximum(product // taken, 1) == 0
        )
        rows = np.flatnonzero(fits)
        lowest = np.minimum.accumulate(falling[rows])
        rows = rows[np.concatenate(([True], falling[rows][1:] < lowest[:-1]))[: len(rows)]]
        for copied in divisors(positions // taken):
            way.append(order[rows])
            across += [(*choice, copied)] * len(rows)
    own_ = np.array(across, np.float64).reshape(-1, splits + 1)
    copies, parts = np.ones((len(slots), len(own_))), np.ones((len(slots), len(own_)))
    for number, states in enumerate(slots):
        copies[number] = own_[:, splits]
        for split, state in enumerate(states):
            if state == WHOLE:
                copies[number] *= own_[:, split]
            elif state == PARTIAL:
                parts[number] *= own_[:, split]
    return MeshAssignment(np.concatenate(way), copies, parts, own_.astype(np.int64))


def _across(possible: Sequence[Sequence[int]], positions: int) -> Iterator[tuple[int, ...]]:
    """Degrees of each split whose product divides the number of positions."""
    if not possible:
        yield ()
        return
    for degree in possible[0]:
        if positions % degree == 0:
            for rest in _across(possible[1:], positions // degree):
                yield (degree, *rest)
