"""Link contention: seconds per byte on the busiest instance of each link (the bottleneck). Enters:
a cluster, a pattern of groups and one round of transfers. Leaves: for each link, how long its
busiest instance needs for every byte of a transfer.

All groups of the pattern run at once and share links:
    seconds per byte of a link = max over its instances of (transfers crossing it) / bandwidth
where an outward port is crossed by transfers of its own level and of all above, added up.
A group that leaves a machine does so through all the cards that its members there own, evenly,
as the channels of NCCL do. Transfers between neighbours on a ring link use both directions alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cluster.cluster import Cluster, Kind, Level, Link
from meshwright.cost.flows import InnerFlows, LevelFlows, PortFlows, Round
from meshwright.cost.pattern import Digit, Pattern, concurrent, group_positions, members


class LinkLoad(NamedTuple):
    """The busiest instance of a link: seconds for every byte that one transfer carries."""

    level: int
    link: str
    seconds_per_byte: float


def loads(cluster: Cluster, pattern: Pattern, moved: Round) -> Iterator[LinkLoad]:
    """The load of every link that the round crosses."""
    sizes = [members(digits) for digits in pattern]
    beside = [concurrent(digits) for digits in pattern]
    innermost = len(sizes) - 1
    by_position = cluster.wired or any(link.outward for link in cluster.levels[-1].links)
    for depth, level in enumerate(cluster.levels):
        for link in level.links:
            owner = cluster.owner_level(link.per)
            if owner < depth:
                if sizes[depth] > 1:
                    containers = math.prod(sizes[owner + 1 : depth]) if moved.everywhere else 1
                    flows = moved.levels[depth]
                    transfers = flows.among[owner + 1] if flows.among else flows.within * containers
                    beyond = transfers * math.prod(beside[owner + 1 :])
                    yield LinkLoad(depth, link.name, beyond / link.out)
            elif depth < innermost or not by_position:
                port = moved.leaving[depth] if link.outward else moved.levels[depth]
                block = dict(cluster.levels[-1].blocks).get(link.per)
                if block is None:
                    groups, inside = float(math.prod(beside[owner + 1 :])), owner + 1
                else:
                    groups, inside = _busiest_block(pattern[-1], block), innermost
                if port.both:
                    yield _port_load(
                        depth, link, port, groups / math.prod(sizes[depth + 1 : inside])
                    )
    if by_position:
        yield from _inner_loads(cluster, pattern, moved)


def _inner_loads(cluster: Cluster, pattern: Pattern, moved: Round) -> Iterator[LinkLoad]:
    """The loads of links owned inside the innermost level, position by position."""
    level = cluster.levels[-1]
    groups = list(group_positions(pattern[-1]))
    for inner in moved.inner():
        for link in level.links:
            if cluster.owner_level(link.per) == len(pattern) - 1:
                yield _inner_load(len(pattern) - 1, level, link, groups, inner)


def latency(cluster: Cluster, pattern: Pattern, moved: Round) -> float:
    """The latency of a round: what a piece of data goes through."""
    *outer, inner = cluster.levels
    used: Kind = "ring" if _stays_on_rings(inner, pattern, moved) else "port"
    of_level: list[float] = []
    for u, level in enumerate(outer):
        deeper = (link for below in cluster.levels[u + 1 :] for link in below.links)
        crossed = (*level.links, *(link for link in deeper if link.outward))
        of_level.append(sum(link.latency for link in crossed))
    of_level.append(sum(link.latency for link in inner.links if link.kind == used))
    waits = [hops * delay for hops, delay in zip(moved.hops, of_level, strict=True)]
    return max(waits) if moved.single else sum(waits)


def _stays_on_rings(inner: Level, pattern: Pattern, moved: Round) -> bool:
    """Whether every transfer of the innermost level is between neighbours on a ring link."""
    if not any(link.kind == "ring" for link in inner.links):
        return False
    groups = list(group_positions(pattern[-1]))
    return all(
        _neighbours(inner, positions[a], positions[b])
        for flows in moved.inner()
        for positions in groups
        for a, b in flows.edges
    )


def _busiest_block(digits: tuple[Digit, ...], block: int) -> float:
    """The most that falls on one block if every group spreads evenly over the blocks it touches."""
    shares: dict[int, float] = defaultdict(float)
    for positions in group_positions(digits):
        touched = {position // block for position in positions}
        for owner in touched:
            shares[owner] += 1 / len(touched)
    return max(shares.values())


def _neighbours(level: Level, a: int, b: int) -> bool:
    """Whether two members of the innermost level are joined by a ring link."""
    ringed = any(link.kind == "ring" for link in level.links)
    return ringed and abs(a - b) in (1, level.cardinality - 1)


def _port_load(
    level: int, link: Link, flows: LevelFlows | PortFlows, share: float = 1.0
) -> LinkLoad:
    if link.duplex == "half":
        return LinkLoad(level, link.name, flows.both * share / link.out)
    return LinkLoad(level, link.name, max(flows.out / link.out, flows.into / link.into) * share)


def _inner_load(
    depth: int, level: Level, link: Link, groups: Sequence[tuple[int, ...]], inner: InnerFlows
) -> LinkLoad:
    """The load inside one instance of the level above the innermost, position by position."""
    size = dict(level.blocks).get(link.per, 1)
    out: list[float] = [0.0] * (level.cardinality // size)
    into: list[float] = [0.0] * (level.cardinality // size)
    for positions in groups:
        for source, target in ((positions[i], positions[j]) for i, j in inner.edges):
            if _neighbours(level, source, target):
                if link.kind == "ring":
                    after = (source + 1) % level.cardinality == target
                    joint = source if after else target
                    out[joint] += inner.edge_weight / 2
                    into[joint] += inner.edge_weight / 2
            elif link.kind == "port" and (link.hub or source // size != target // size):
                out[source // size] += inner.edge_weight
                into[target // size] += inner.edge_weight
        if link.outward:
            for end in inner.exits:
                out[positions[end] // size] += inner.exit_weight
            for end in inner.entries:
                into[positions[end] // size] += inner.exit_weight
    if link.hub:
        out[0] = into[0] = 0.0
    both = max(a + b for a, b in zip(out, into, strict=True))
    return _port_load(depth, link, PortFlows(max(out), max(into), both))
