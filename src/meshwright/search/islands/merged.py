"""Regular machines inside a sum of islands. Enters: an `IslandCluster`. Leaves: the largest regular
machines that some of several islands make: what people take when they drop the odd device.

Islands with the same levels make one if each gives as many of the inner levels as the smallest has,
and all of the outermost. Where links of their own join them, each gives as many of every level as
the smallest has, and the islands are a level above, with these links (`IslandCluster.like`). Its
devices and links are the slowest of theirs: unlike ones in one regular plan wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.units import Bytes, BytesPerSecond, OpsPerSecond
from meshwright.cluster.islands import Island, IslandCluster
from meshwright.cluster.model import Cluster, Device, Level, Link

MOST = 4
"""Islands of which all subsets are looked at; of more only all together."""


def merged(machine: IslandCluster) -> Iterator[tuple[tuple[str, ...], Cluster]]:
    """The names of islands, and the regular machine that they make."""
    islands = machine.islands
    sizes = range(2, len(islands) + 1) if len(islands) <= MOST else (len(islands),)
    for size in sizes:
        for own in combinations(islands, size):
            found = _one(machine, own)
            if found is not None:
                yield tuple(island.name for island in own), found


def _one(machine: IslandCluster, islands: tuple[Island, ...]) -> Cluster | None:
    clusters = [own.cluster for own in islands]
    first = clusters[0]
    if any(own.level_names != first.level_names for own in clusters):
        return None
    if any(own.machine != first.machine for own in clusters):
        return None
    joined = bool(machine.join)
    if len(first.levels) < 2 and not joined:
        return None
    levels = _levels(clusters, joined=joined)
    if levels is None:
        return None
    try:
        own = msgspec.structs.replace(
            first,
            name="+".join(own.name for own in islands),
            levels=levels,
            device=slowest([own.device for own in clusters]),
        )
        if not joined:
            return own
        every = machine.like(Island(name=islands[0].name, cluster=own), len(islands))
        return msgspec.structs.replace(every, name=own.name)
    except InputError:
        return None


def _levels(clusters: list[Cluster], *, joined: bool) -> tuple[Level, ...] | None:
    """What each gives of its levels; None if they are unlike."""
    levels = []
    for depth, level in enumerate(clusters[0].levels):
        same = [own.levels[depth] for own in clusters]
        links = _links(same)
        if links is None or any(own.blocks != level.blocks for own in same):
            return None
        counts = [own.cardinality for own in same]
        size = sum(counts) if depth == 0 and not joined else min(counts)
        levels.append(Level(name=level.name, cardinality=size, links=links, blocks=level.blocks))
    return tuple(levels)


def _links(levels: list[Level]) -> tuple[Link, ...] | None:
    """The slowest of links that stand at the same place; None where they do not."""
    if len({len(own.links) for own in levels}) > 1:
        return None
    found = []
    for same in zip(*(own.links for own in levels), strict=True):
        kinds = {(own.per, own.kind, own.hub, own.outward, own.duplex) for own in same}
        if len(kinds) > 1:
            return None
        found.append(
            msgspec.structs.replace(
                same[0],
                out=min(own.out for own in same),
                into=min(own.into for own in same),
                latency=max(own.latency for own in same),
            )
        )
    return tuple(found)


def slowest(devices: list[Device]) -> Device:
    """A device that is in nothing faster or larger than any of these."""
    first = min(devices, key=lambda own: max((rate for _, rate in own.peak), default=0.0))
    if all(own == first for own in devices):
        return first
    peaks = [dict(own.peak) for own in devices]
    return msgspec.structs.replace(
        first,
        memory=Bytes(min(own.memory for own in devices)),
        memory_bandwidth=BytesPerSecond(min(own.memory_bandwidth for own in devices)),
        peak=tuple(
            (dtype, OpsPerSecond(min(own[dtype] for own in peaks)))
            for dtype in dict(first.peak)
            if all(dtype in own for own in peaks)
        ),
    )
