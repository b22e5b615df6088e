"""Homogeneous sub-clusters: the largest regular machines inside an island cluster. Enters: an
`IslandCluster`. Leaves: the largest regular machines that some of several islands make: what people
take when they drop the odd device.

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
from meshwright.base.quantities import Bytes, BytesPerSecond, OpsPerSecond
from meshwright.cluster.cluster import Cluster, Device, Level, Link
from meshwright.cluster.island_cluster import Island, IslandCluster

MOST = 4
"""Islands of which all subsets are looked at; of more only all together."""


def merged(machine: IslandCluster) -> Iterator[tuple[tuple[str, ...], Cluster]]:
    """The names of islands, and the regular machine that they make."""
    islands = machine.islands
    sizes = range(2, len(islands) + 1) if len(islands) <= MOST else (len(islands),)
    for size in sizes:
        for chosen in combinations(islands, size):
            cluster = _one(machine, chosen)
            if cluster is not None:
                yield tuple(island.name for island in chosen), cluster


def _one(machine: IslandCluster, islands: tuple[Island, ...]) -> Cluster | None:
    clusters = [island.cluster for island in islands]
    first = clusters[0]
    if any(cluster.level_names != first.level_names for cluster in clusters):
        return None
    if any(cluster.machine != first.machine for cluster in clusters):
        return None
    joined = bool(machine.join)
    if len(first.levels) < 2 and not joined:
        return None
    levels = _levels(clusters, joined=joined)
    if levels is None:
        return None
    try:
        combined = msgspec.structs.replace(
            first,
            name="+".join(island.name for island in islands),
            levels=levels,
            device=slowest([cluster.device for cluster in clusters]),
        )
        if not joined:
            return combined
        every = machine.like(Island(name=islands[0].name, cluster=combined), len(islands))
        return msgspec.structs.replace(every, name=combined.name)
    except InputError:
        return None


def _levels(clusters: list[Cluster], *, joined: bool) -> tuple[Level, ...] | None:
    """What each gives of its levels; None if they are unlike."""
    levels = []
    for depth, level in enumerate(clusters[0].levels):
        same = [cluster.levels[depth] for cluster in clusters]
        links = _links(same)
        if links is None or any(other.blocks != level.blocks for other in same):
            return None
        counts = [other.cardinality for other in same]
        size = sum(counts) if depth == 0 and not joined else min(counts)
        levels.append(Level(name=level.name, cardinality=size, links=links, blocks=level.blocks))
    return tuple(levels)


def _links(levels: list[Level]) -> tuple[Link, ...] | None:
    """The slowest of links that stand at the same place; None where they do not."""
    if len({len(level.links) for level in levels}) > 1:
        return None
    links = []
    for same in zip(*(level.links for level in levels), strict=True):
        kinds = {(link.per, link.kind, link.hub, link.outward, link.duplex) for link in same}
        if len(kinds) > 1:
            return None
        links.append(
            msgspec.structs.replace(
                same[0],
                out=min(link.out for link in same),
                into=min(link.into for link in same),
                latency=max(link.latency for link in same),
            )
        )
    return tuple(links)


def slowest(devices: list[Device]) -> Device:
    """A device that is in nothing faster or larger than any of these."""
    first = min(devices, key=lambda device: max((rate for _, rate in device.peak), default=0.0))
    if all(device == first for device in devices):
        return first
    peaks = [dict(device.peak) for device in devices]
    return msgspec.structs.replace(
        first,
        memory=Bytes(min(device.memory for device in devices)),
        memory_bandwidth=BytesPerSecond(min(device.memory_bandwidth for device in devices)),
        peak=tuple(
            (dtype, OpsPerSecond(min(peak[dtype] for peak in peaks)))
            for dtype in dict(first.peak)
            if all(dtype in peak for peak in peaks)
        ),
    )
