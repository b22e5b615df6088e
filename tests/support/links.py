"""Loads of links computed the slow and obvious way: every device, every transfer, every link.

The twin of `meshwright.cost.link_load` and `flows`; it takes only groups of device numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from meshwright.cluster.cluster import WHOLE, Cluster, Link
from meshwright.cost.backend import Shape

Transfer = tuple[int, int, float]
Key = tuple[Link, tuple[int, ...]]
"""A link and its instance."""


def rounds_of_transfers(
    shape: Shape, group: Sequence[int], cluster: Cluster
) -> Iterator[list[Transfer]]:
    """The transfers of each round of one group."""
    n = len(group)
    if shape is Shape.RING:
        yield [(group[i], group[(i + 1) % n], 1.0) for i in range(n)]
    elif shape in (Shape.CHAIN, Shape.SHIFT):
        yield [(a, b, 1.0) for a, b in pairwise(group)]
    elif shape is Shape.GATHER:
        yield [(device, group[0], 1.0) for device in group[1:]]
    elif shape is Shape.SCATTER:
        yield [(group[0], device, 1.0) for device in group[1:]]
    elif shape is Shape.ALL_TO_ALL:
        yield [(a, b, 1.0) for a in group for b in group if a != b]
    elif shape is Shape.SEND:
        yield [(group[0], group[-1], 1.0)]
    elif shape is Shape.BINOMIAL:
        distance = 1
        while distance < n:
            pairs = [(i, i + distance) for i in range(distance) if i + distance < n]
            yield [(group[i], group[j], 1.0) for i, j in pairs]
            distance *= 2
    else:
        yield list(_tree(group, cluster))


def _machines(group: Sequence[int], cluster: Cluster) -> list[list[int]]:
    """The members of a group, by machine."""
    networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
    machines: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for device in group:
        machines[coordinates(cluster, device)[:networked]].append(device)
    return list(machines.values())


def _tree(group: Sequence[int], cluster: Cluster) -> Iterator[Transfer]:
    """Machines joined through their first members, and what is inside one level by level."""
    machines = _machines(group, cluster)
    for a, b, weight in _edges(len(machines), True):
        yield machines[a][0], machines[b][0], weight
        yield machines[b][0], machines[a][0], weight
    for machine in machines:
        networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
        yield from _chains(machine, cluster, networked)


def _chains(group: Sequence[int], cluster: Cluster, level: int) -> Iterator[Transfer]:
    """Siblings of each level joined through their first members."""
    if level == len(cluster.levels):
        return
    children: dict[int, list[int]] = defaultdict(list)
    for device in group:
        children[coordinates(cluster, device)[level]].append(device)
    firsts = [child[0] for child in children.values()]
    for a, b, weight in _edges(len(firsts), False):
        yield firsts[a], firsts[b], weight
        yield firsts[b], firsts[a], weight
    for child in children.values():
        yield from _chains(child, cluster, level + 1)


def _edges(size: int, networked: bool) -> Iterator[Transfer]:
    if not networked:
        yield from ((i, i + 1, 1.0) for i in range(size - 1))
        return
    # An in-order binary tree over 1 ... size-1 hangs under 0; the second tree is the first one
    # mirrored (even sizes) or shifted by one (odd sizes).
    for rank in range(1, size):
        height = 1
        while rank % (2 * height) == 0:
            height *= 2
        parent = rank - height + 2 * height if rank % (4 * height) == height else rank - height
        if parent >= size:
            parent = rank - height
        yield rank, parent, 0.5
        if size % 2:
            yield (rank + 1) % size, (parent + 1) % size, 0.5
        else:
            yield size - 1 - rank, size - 1 - parent, 0.5


def coordinates(cluster: Cluster, device: int) -> tuple[int, ...]:
    """The position of a device at each level."""
    result = []
    for cardinality in reversed(cluster.hierarchy):
        device, position = divmod(device, cardinality)
        result.append(position)
    return tuple(reversed(result))


def owner(cluster: Cluster, link: Link, device: int) -> tuple[int, ...]:
    """The instance of the link that serves a device."""
    place = coordinates(cluster, device)
    if link.per == WHOLE:
        return ()
    blocks = dict(cluster.levels[-1].blocks)
    if link.per in blocks:
        return (*place[:-1], place[-1] // blocks[link.per])
    return place[: cluster.level_index(link.per) + 1]


def busiest_seconds_per_byte(
    cluster: Cluster, groups: Sequence[Sequence[int]], shape: Shape
) -> list[float]:
    """For each round, the largest load over all instances of all links."""
    per_group = [list(rounds_of_transfers(shape, group, cluster)) for group in groups]
    results = []
    for moved in zip(*per_group, strict=True):
        tally = _Tally(cluster)
        for group, transfers in zip(groups, moved, strict=True):
            for source, target, weight in transfers:
                tally.add(group, source, target, weight)
        results.append(tally.busiest())
    return results


def round_latencies(cluster: Cluster, groups: Sequence[Sequence[int]], shape: Shape) -> list[float]:
    """For each round, how long the data that is longest on its way waits for links."""
    group = groups[0]
    innermost = cluster.levels[-1]
    ringed = any(link.kind == "ring" for link in innermost.links)

    def level_of(source: int, target: int) -> int:
        ends = zip(coordinates(cluster, source), coordinates(cluster, target), strict=True)
        return next(u for u, (a, b) in enumerate(ends) if a != b)

    def neighbours(source: int, target: int) -> bool:
        gap = coordinates(cluster, source)[-1] - coordinates(cluster, target)[-1]
        return ringed and gap % innermost.cardinality in (1, innermost.cardinality - 1)

    results: list[float] = []
    for moved in zip(*(rounds_of_transfers(shape, g, cluster) for g in groups), strict=True):
        every = [(a, b) for transfers in moved for a, b, _ in transfers]
        inside = [(a, b) for a, b in every if level_of(a, b) == len(cluster.levels) - 1]
        kind = "ring" if ringed and all(neighbours(a, b) for a, b in inside) else "port"
        of_level = [
            sum(link.latency for link in level.links)
            + sum(
                k.latency for deeper in cluster.levels[u + 1 :] for k in deeper.links if k.outward
            )
            for u, level in enumerate(cluster.levels[:-1])
        ]
        of_level.append(sum(link.latency for link in innermost.links if link.kind == kind))
        waits = [of_level[level_of(a, b)] for a, b, _ in moved[0]]
        if shape is Shape.RING:
            # The way once round, without the last transfer back to the first member.
            results.append(sum(waits[:-1]))
        elif shape is Shape.CHAIN:
            results.append(sum(waits))
        elif shape is Shape.TREE:
            results.append(_deepest(group, cluster, of_level))
        else:
            results.append(max(waits))
    return results


def _deepest(group: Sequence[int], cluster: Cluster, of_level: Sequence[float]) -> float:
    """The way from the root of a tree to the machine that is farthest, by outer levels first, and
    down all levels inside it.
    """
    networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
    machines = _machines(group, cluster)
    places = [coordinates(cluster, machine[0])[:networked] for machine in machines]
    longest = [0] * networked
    up = [(a, b) for a, b, _ in _edges(len(machines), True)]
    for parents in (dict(up[::2]), dict(up[1::2])):
        for member in parents:
            passed = [0] * networked
            while member in parents:
                ends = zip(places[member], places[parents[member]], strict=True)
                passed[next(u for u, (a, b) in enumerate(ends) if a != b)] += 1
                member = parents[member]
            longest = max(longest, passed)
    inside = 0.0
    for level in range(networked, len(cluster.levels)):
        size = len({coordinates(cluster, device)[level] for device in machines[0]})
        inside += (size - 1) * of_level[level]
    return sum(n * wait for n, wait in zip(longest, of_level, strict=False)) + inside


class _Tally:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.out: dict[Key, float] = defaultdict(float)
        self.into: dict[Key, float] = defaultdict(float)
        self.media: dict[Key, float] = defaultdict(float)

    def add(self, group: Sequence[int], source: int, target: int, weight: float) -> None:
        cluster = self.cluster
        source_place, target_place = coordinates(cluster, source), coordinates(cluster, target)
        level = next(
            u for u, (a, b) in enumerate(zip(source_place, target_place, strict=True)) if a != b
        )
        innermost = len(cluster.levels) - 1
        for link in cluster.levels[level].links:
            depth = len(owner(cluster, link, source))
            if depth <= level:
                self.media[link, owner(cluster, link, source)] += weight
            elif level == innermost:
                self._inside(link, source_place[-1], target_place[-1], source, target, weight)
            else:
                self._spread(link, group, level, source_place, target_place, weight)
        for depth in range(level + 1, innermost):
            for link in cluster.levels[depth].links:
                if link.outward:
                    self._spread(link, group, depth, source_place, target_place, weight)
        if level < innermost:
            for link in cluster.levels[-1].links:
                if link.outward:
                    self.out[link, owner(cluster, link, source)] += weight
                    self.into[link, owner(cluster, link, target)] += weight

    def _spread(
        self,
        link: Link,
        group: Sequence[int],
        level: int,
        source_place: tuple[int, ...],
        target_place: tuple[int, ...],
        weight: float,
    ) -> None:
        """Charge all the cards that the group's members own in those instances of a level which it
        leaves and enters.
        """
        for ends, charged in ((source_place, self.out), (target_place, self.into)):
            cards = {
                owner(self.cluster, link, member)
                for member in group
                if coordinates(self.cluster, member)[: level + 1] == ends[: level + 1]
            }
            for card in cards:
                charged[link, card] += weight / len(cards)

    def _inside(self, link: Link, a: int, b: int, source: int, target: int, weight: float) -> None:
        level = self.cluster.levels[-1]
        ringed = any(k.kind == "ring" for k in level.links)
        neighbours = ringed and (a - b) % level.cardinality in (1, level.cardinality - 1)
        if link.kind == "ring" and neighbours:
            joint = a if (a + 1) % level.cardinality == b else b
            key = (link, (*coordinates(self.cluster, source)[:-1], joint))
            self.out[key] += weight / 2
            self.into[key] += weight / 2
        elif link.kind == "port" and not neighbours:
            mine, other = (owner(self.cluster, link, d) for d in (source, target))
            if mine != other or link.hub:
                self.out[link, mine] += weight
                self.into[link, other] += weight

    def busiest(self) -> float:
        loads = [amount / link.out for (link, _), amount in self.media.items()]
        for key in {*self.out, *self.into}:
            link, instance = key
            if link.hub and instance[-1] == 0:
                continue
            if link.duplex == "half":
                loads.append((self.out[key] + self.into[key]) / link.out)
            else:
                loads.append(max(self.out[key] / link.out, self.into[key] / link.into))
        return max(loads)
