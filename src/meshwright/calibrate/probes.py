"""Probe transfers for link calibration: pairs of devices that saturate a link. Enters: a `Cluster`.
Leaves: transfers between devices that fill a link, and how much of any transfers crosses the
busiest instance of each link.

    transfers that fill a link = everything that shares one instance of it, at once
    seconds per byte of a link = max over its instances of (transfers crossing it) / bandwidth

Devices are numbered row-major. Rings and hubs inside a node are left out. Nothing here sends, or
knows any time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cluster.cluster import WHOLE, Cluster, Link

Pair = tuple[int, int]
"""A transfer: who sends, who receives."""

Pairs = tuple[Pair, ...]
"""Transfers of equal size at the same time."""


class FittedLine(NamedTuple):
    """A link of a cluster by its place."""

    level: int
    number: int

    def of(self, cluster: Cluster) -> Link:
        """The link itself."""
        return cluster.levels[self.level].links[self.number]


class ProbeCrossing(NamedTuple):
    """How many transfers leave and enter one instance of a link; all leave a shared medium."""

    out: int
    into: int


def lines(cluster: Cluster) -> Iterator[FittedLine]:
    """All links, outer levels first."""
    for level, described in enumerate(cluster.levels):
        yield from (FittedLine(level, number) for number in range(len(described.links)))


def partner(cluster: Cluster, device: int, level: int, step: int = 1) -> int:
    """The device some steps further at a level, round and round, and elsewhere at the same place.

    >>> cluster = Cluster.named("dgx-h100", node=2)
    >>> partner(cluster, 3, 0), partner(cluster, 15, 1)
    (11, 8)
    """
    stride = math.prod(cluster.hierarchy[level + 1 :])
    size = cluster.hierarchy[level]
    place = device // stride % size
    return device + ((place + step) % size - place) * stride


def firsts(cluster: Cluster) -> tuple[Pair | None, ...]:
    """For each level the first two devices that differ at it alone; None if it has one instance.

    >>> firsts(Cluster.named("dgx-h100", node=2))
    ((0, 8), (0, 1))
    """
    return tuple(
        (0, partner(cluster, 0, level)) if size > 1 else None
        for level, size in enumerate(cluster.hierarchy)
    )


def everyone(cluster: Cluster, level: int) -> Pairs:
    """Every device sends to the next one at a level."""
    return tuple((d, partner(cluster, d, level)) for d in range(cluster.devices))


def filling(cluster: Cluster, line: FittedLine) -> Pairs:
    """The transfers that share the first instance of a link; none if it cannot be filled.

    >>> cluster = Cluster.named("gcp-a100", node=2, gpu=2)
    >>> filling(cluster, FittedLine(0, 0)), filling(cluster, FittedLine(1, 0))
    (((0, 2), (1, 3)), ((0, 1),))
    """
    link = line.of(cluster)
    leaving = _leaving(cluster, line)
    if leaving is None or (
        line.level == len(cluster.levels) - 1 and not is_innermost_plain(cluster)
    ):
        return ()
    level, step = leaving
    first = _owner(cluster, link.per, 0)
    sharing = (d for d in range(cluster.devices) if _owner(cluster, link.per, d) == first)
    pairs = tuple((d, partner(cluster, d, level, step)) for d in sharing)
    if link.duplex == "half" and not _is_medium(cluster, line):
        # Both directions of a port count, and those of two owners only ever cross the same two.
        returning = tuple((b, a) for a, b in pairs)
        return pairs + tuple(pair for pair in returning if pair not in pairs)
    return pairs


def is_innermost_plain(cluster: Cluster) -> bool:
    """Whether the innermost level has ports and media only."""
    return not any(link.kind == "ring" or link.hub for link in cluster.levels[-1].links)


def _leaving(cluster: Cluster, line: FittedLine) -> tuple[int, int] | None:
    """At which level, and by how many steps, transfers leave the owner of a link."""
    step = dict(cluster.levels[line.level].blocks).get(line.of(cluster).per, 1)
    if cluster.hierarchy[line.level] > step:
        return line.level, step
    if line.of(cluster).outward:
        above = [u for u in range(line.level) if cluster.hierarchy[u] > 1]
        return (above[-1], 1) if above else None
    return None


def _owner(cluster: Cluster, per: str, device: int) -> int:
    """Which instance of an owner a device belongs to."""
    if per == WHOLE:
        return 0
    block = dict(cluster.levels[-1].blocks).get(per)
    stride = math.prod(cluster.hierarchy[cluster.owner_level(per) + 1 :])
    return device // (block or stride)


def _is_medium(cluster: Cluster, line: FittedLine) -> bool:
    return cluster.owner_level(line.of(cluster).per) < line.level


def busiest(cluster: Cluster, pairs: Sequence[Pair]) -> dict[FittedLine, ProbeCrossing]:
    """For each link that is crossed, what crosses its slowest instance."""
    crossings: dict[FittedLine, ProbeCrossing] = {}
    for line in lines(cluster):
        instances = _instances(cluster, line, pairs)
        if instances:
            link = line.of(cluster)
            crossings[line] = max(instances, key=lambda crossing: seconds_per_byte(link, crossing))
    return crossings


def seconds_per_byte(link: Link, crossing: ProbeCrossing) -> float:
    """How long an instance of a link needs for a byte of each transfer that crosses it."""
    if link.duplex == "half":
        return (crossing.out + crossing.into) / link.out
    return max(crossing.out / link.out, crossing.into / link.into)


def pace(cluster: Cluster, pairs: Sequence[Pair]) -> float:
    """Seconds for a byte of each of some transfers at once, paced by the busiest link."""
    loads = busiest(cluster, pairs)
    return max((seconds_per_byte(line.of(cluster), loads[line]) for line in loads), default=0.0)


def _instances(cluster: Cluster, line: FittedLine, pairs: Sequence[Pair]) -> list[ProbeCrossing]:
    link, medium = line.of(cluster), _is_medium(cluster, line)
    inner = line.level == len(cluster.levels) - 1
    out: dict[int, int] = defaultdict(int)
    into: dict[int, int] = defaultdict(int)
    for source, target in pairs:
        level = outermost(cluster, source, target)
        if level != line.level and not (level < line.level and link.outward):
            continue
        if level == line.level and inner and not is_innermost_plain(cluster):
            continue
        leaves, enters = _owner(cluster, link.per, source), _owner(cluster, link.per, target)
        if medium:
            out[leaves] += 1
        elif leaves != enters:
            out[leaves] += 1
            into[enters] += 1
    return [ProbeCrossing(out[owner], into[owner]) for owner in sorted({*out, *into})]


def outermost(cluster: Cluster, a: int, b: int) -> int:
    """The outermost level at which two devices differ."""
    strides = [math.prod(cluster.hierarchy[u + 1 :]) for u in range(len(cluster.levels))]
    return next(u for u, stride in enumerate(strides) if a // stride != b // stride)
