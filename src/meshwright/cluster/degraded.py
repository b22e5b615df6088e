"""Clusters with devices missing or slow (stragglers). Enters: a machine, and which of its parts are
out or slow, as `node3`, `node3.gpu5` or, on a sum of islands, `h100.node0`. Leaves: what is left: a
regular cluster where it is one, else a sum of islands.

Instances of a level that have lost the same are alike and stay together: 4 nodes of 8 GPUs without
node3.gpu5 are 3 x 8 + 1 x 7. What lies inside of an instance of the outermost level is joined no
worse than the outermost level joins: a prediction may be too careful there, never too hopeful.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Island, IslandCluster, Machine, slowed, summed

Path = tuple[int, ...]
"""The position in each level, outermost first; fewer than all levels: everything inside."""


def degraded(
    machine: Machine, without: Sequence[str] = (), slow: Mapping[str, float] | None = None
) -> Machine:
    """What is left of a machine.

    >>> left = degraded(Cluster.named("dgx-h100"), ["node3.gpu5"])
    >>> [(island.name, island.cluster.hierarchy) for island in left.islands]
    [('node-x3', (3, 8)), ('node3', (1, 7))]
    >>> degraded(Cluster.named("dgx-h100"), ["node3"]).hierarchy
    (3, 8)
    """
    slow = slow or {}
    if not without and not slow:
        return machine
    match machine:
        case Cluster():
            out = [_path(text, machine, "--without") for text in without]
            rates = {_path(text, machine, "--slow"): rate for text, rate in slow.items()}
            islands = _parts(machine, out, rates)
            if not islands:
                raise InputError(
                    f"--without leaves nothing of cluster {machine.name!r}", "leave fewer out"
                )
            return summed(machine.name, islands, (), machine.description, machine.source)
        case IslandCluster():
            return _of_islands(machine, without, slow)


def _of_islands(
    machine: IslandCluster, without: Sequence[str], slow: Mapping[str, float]
) -> Machine:
    out: dict[str, list[str]] = {}
    rates: dict[str, dict[str, float]] = {}
    for text in without:
        name, _, rest = text.partition(".")
        out.setdefault(machine.island(name).name, []).append(rest)
    for text, rate in slow.items():
        name, _, rest = text.partition(".")
        rates.setdefault(machine.island(name).name, {})[rest] = rate
    left: list[Island] = []
    for island in machine.islands:
        gone, slower = out.get(island.name, []), rates.get(island.name, {})
        if "" in gone:
            continue
        cluster = island.cluster
        if "" in slower:
            slower = dict(slower)
            rate = slower.pop("")
            cluster = msgspec.structs.replace(cluster, device=slowed(cluster.device, rate))
        try:
            part = degraded(cluster, gone, slower)
        except InputError as error:
            raise error.at(f"island {island.name!r}") from None
        if isinstance(part, Cluster):
            left.append(Island(name=island.name, cluster=part))
        else:
            left += [
                Island(name=f"{island.name}.{inner.name}", cluster=inner.cluster)
                for inner in part.islands
            ]
    if not left:
        raise InputError(f"--without leaves nothing of cluster {machine.name!r}", "leave fewer out")
    return summed(machine.name, left, machine.join, machine.description, machine.source)


def _path(text: str, cluster: Cluster, option: str) -> Path:
    """A position from text, as node3.gpu5."""
    form = ".".join(f"{level.name}{level.cardinality - 1}" for level in cluster.levels)
    positions: list[int] = []
    for number, part in enumerate(text.split(".")):
        match = re.fullmatch(r"(.*?)(\d+)", part)
        levels = cluster.levels[number : number + 1]
        if match is None or not levels:
            raise InputError(
                f"{option} {shown(text)} names no part of cluster {cluster.name!r}",
                f"write it as {form!r}, or the beginning of that",
            )
        if match[1] != levels[0].name:
            raise InputError(
                f"{option} {shown(text)}: {match[1]!r} is not level {number + 1} of cluster "
                f"{cluster.name!r}",
                f"{nearest(match[1], [levels[0].name])}: write it as {form!r}",
            )
        if int(match[2]) >= levels[0].cardinality:
            raise InputError(
                f"{option} {shown(text)}: cluster {cluster.name!r} has {levels[0].name}0 to "
                f"{levels[0].name}{levels[0].cardinality - 1}",
                "name one of these",
            )
        positions.append(int(match[2]))
    return tuple(positions)


class _Shape(msgspec.Struct, frozen=True):
    """What is left of one instance: cardinalities of the levels inside, and its speed."""

    inside: tuple[int, ...]
    speed: float


def _parts(
    cluster: Cluster, out: Sequence[Path], rates: Mapping[Path, float]
) -> tuple[Island, ...]:
    """The islands of what is left, instances of the outermost level that are alike together."""
    outer = cluster.levels[0]
    alike: dict[_Shape, list[int]] = {}
    for position in range(outer.cardinality):
        gone = [path[1:] for path in out if path[0] == position]
        slow = {path[1:]: rate for path, rate in rates.items() if path[0] == position}
        for shape in _inside(cluster, 1, gone, slow, 1.0):
            alike.setdefault(shape, []).append(position)
    many = len(alike) > 1
    islands: list[Island] = []
    for shape, positions in alike.items():
        sizes = dict(zip(cluster.level_names, (len(positions), *shape.inside), strict=True))
        name = f"{outer.name}-x{len(positions)}"
        if len(positions) == 1:
            name = f"{outer.name}{positions[0]}"
        taken = sum(island.name == name or island.name.startswith(f"{name}-") for island in islands)
        if many and taken:
            name = f"{name}-{taken + 1}"
        try:
            left = cluster.resized(sizes)
        except InputError as error:
            raise InputError(
                f"without that device {error.problem}",
                f"leave the whole {outer.name} out, as --without {outer.name}{positions[0]}",
            ) from None
        device = slowed(cluster.device, shape.speed)
        left = msgspec.structs.replace(left, device=device)
        islands.append(Island(name=name, cluster=left))
    return tuple(islands)


def _inside(
    cluster: Cluster, depth: int, gone: Sequence[Path], slow: Mapping[Path, float], speed: float
) -> list[_Shape]:
    """What is left inside of an instance of the level above `depth`, each shape once."""
    if () in gone:
        return []
    speed = speed * slow.get((), 1.0)
    if depth == len(cluster.levels):
        return [_Shape((), speed)]
    counts: dict[_Shape, int] = {}
    for position in range(cluster.levels[depth].cardinality):
        lost = [path[1:] for path in gone if path and path[0] == position]
        slower = {path[1:]: rate for path, rate in slow.items() if path and path[0] == position}
        for shape in _inside(cluster, depth + 1, lost, slower, speed):
            counts[shape] = counts.get(shape, 0) + 1
    return [_Shape((count, *shape.inside), shape.speed) for shape, count in counts.items()]
