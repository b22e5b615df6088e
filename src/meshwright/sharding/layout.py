"""Layouts: the role of every mesh factor for an op group. Enters: splits, a cluster. Leaves:
layouts.

Each level of a cluster is split into its prime factors, outermost first; a layout gives each of
them a role: the name of one of the operator's splits, "replica" (all coordinates do the same
work), or idle, written "@1" (only the devices at coordinate 1 work). A split's parts are numbered
by its factors, the outermost the most significant. P²'s parallelism matrix is what one gets by
multiplying the factors that share a role and a level. Nothing here knows of bytes or seconds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, combinations_with_replacement, groupby, product
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import parse_whole, prime_factors
from meshwright.cluster.cluster import Cluster

REPLICA = "replica"
IDLE = "@"


class MeshFactor(NamedTuple):
    """A prime factor of a level's cardinality."""

    level: int
    size: int


def factors(cluster: Cluster) -> tuple[MeshFactor, ...]:
    """The factors of a cluster, outermost level first.

    >>> [tuple(factor) for factor in factors(Cluster.named("summit", node=2))]
    [(0, 2), (1, 2), (2, 3)]
    """
    return tuple(
        MeshFactor(level, size)
        for level, cardinality in enumerate(cluster.hierarchy)
        for size in prime_factors(cardinality)
    )


def inner_group_sizes(mesh_factors: Sequence[MeshFactor]) -> tuple[int, ...]:
    """How many devices in a row lie along the innermost factor, the innermost two ... and all.

    >>> inner_group_sizes(factors(Cluster.named("dgx-h100", node=2)))
    (2, 4, 8, 16)
    """
    return tuple(accumulate((factor.size for factor in reversed(mesh_factors)), operator.mul))


def level_group_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Those of fewer than all that are whole levels, as the GPUs of a node.

    >>> level_group_sizes(Cluster.named("dgx-h100", node=4))
    (8,)
    """
    sizes = [cardinality for cardinality in reversed(cluster.hierarchy) if cardinality > 1]
    return tuple(accumulate(sizes[:-1], operator.mul))


def sharding(mesh_factors: Sequence[MeshFactor], devices: int) -> tuple[bool, ...]:
    """Which factors lie inside of so many devices in a row; all for 0.

    >>> sharding(factors(Cluster.named("dgx-h100", node=2)), 8)
    (False, True, True, True)
    """
    behind = [
        math.prod(factor.size for factor in mesh_factors[f:]) for f in range(len(mesh_factors))
    ]
    return tuple(not devices or count <= devices for count in behind)


class Layout(msgspec.Struct, frozen=True):
    """The role of every factor.

    >>> Layout.parse("sample sample @1 replica").roles
    ('sample', 'sample', '@1', 'replica')
    """

    roles: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.roles)

    @staticmethod
    def parse(text: str) -> Layout:
        """A layout from its roles in a row."""
        return Layout(tuple(text.split()))

    def degrees(self, mesh_factors: Iterable[MeshFactor]) -> dict[str, int]:
        """How many ways each split cuts.

        >>> layout = Layout.parse("sample sample channel")
        >>> layout.degrees([MeshFactor(0, 2), MeshFactor(0, 2), MeshFactor(1, 3)])
        {'sample': 4, 'channel': 3}
        """
        ways: dict[str, int] = {}
        for role, factor in zip(self.roles, mesh_factors, strict=True):
            if role != REPLICA and not role.startswith(IDLE):
                ways[role] = ways.get(role, 1) * factor.size
        return ways

    def coordinates(self) -> tuple[int | None, ...]:
        """For each factor the coordinate at which the operator sits, or None if at all."""
        return tuple(int(role[1:]) if role.startswith(IDLE) else None for role in self.roles)


def checked_layout(
    layout: Layout,
    extents: Mapping[str, tuple[int, ...]],
    mesh_factors: tuple[MeshFactor, ...],
    what: str,
) -> Layout:
    """The layout, if it fits a machine and splits of these extents."""
    if len(layout.roles) != len(mesh_factors):
        raise InputError(
            f"the layout of {what} has {len(layout.roles)} roles, {str(layout)!r}",
            f"give one for each of the cluster's {len(mesh_factors)} prime factors",
        )
    for number, (role, factor) in enumerate(zip(layout.roles, mesh_factors, strict=True)):
        if role.startswith(IDLE):
            if _coordinate(role, what) >= factor.size:
                raise InputError(
                    f"{what} sits at {role!r} of factor {number}, which has {factor.size}",
                    f"give @0 to @{factor.size - 1}",
                )
        elif role != REPLICA and role not in extents:
            raise InputError(
                f"{what} cannot be split along {role!r}", nearest(role, (*extents, REPLICA))
            )
    for name, degree in layout.degrees(mesh_factors).items():
        if not divides(extents[name], degree):
            raise InputError(
                f"{what} has {' and '.join(map(str, sorted(set(extents[name]))))} units along "
                f"{name!r}, which cannot be cut {degree} ways",
                "give a degree that divides them, or that leaves only the last part shorter",
            )
    return layout


def _coordinate(role: str, what: str) -> int:
    try:
        return parse_whole(role[1:])
    except InputError as error:
        raise error.at(f"role {role!r} of {what}") from None


@lru_cache(maxsize=1 << 16)
def divides(extents: tuple[int, ...], degree: int) -> bool:
    """Whether dims of these extents can be cut together: evenly, or all with a shorter last part.

    >>> divides((8,), 3), divides((8,), 5), divides((8, 16), 4), divides((8, 16), 3)
    (True, False, True, False)
    """
    distinct = set(extents)
    if all(extent % degree == 0 for extent in distinct):
        return True
    (extent, *others) = distinct
    return not others and extent > -(-extent // degree) * (degree - 1)


def layouts(
    extents: Mapping[str, tuple[int, ...]],
    cluster: Cluster,
    *,
    symmetric: bool = True,
    idle: bool = True,
) -> Iterator[Layout]:
    """Every legal layout; with `symmetric` once for all that exchanging like factors makes equal.
    Without `idle` only those that use all devices.

    Equal factors of one level can be exchanged (unless the level's wiring tells its positions
    apart), and an operator may as well sit at coordinate 0 as anywhere else.

    >>> lenient = {"sample": (64,), "channel": (10,)}
    >>> cluster = Cluster.named("laptop")
    >>> [str(layout) for layout in layouts(lenient, cluster)][:4]
    ['sample sample', 'sample channel', 'sample replica', 'sample @0']
    """
    mesh_factors = factors(cluster)
    choices = [
        list(_choices(cluster, run, extents, symmetric, idle)) for run in _runs(mesh_factors)
    ]
    legal = cache(lambda name, degree: divides(extents[name], degree))
    for parts in product(*choices):
        layout = Layout(tuple(role for part in parts for role in part))
        if all(legal(name, degree) for name, degree in layout.degrees(mesh_factors).items()):
            yield layout


def _runs(mesh_factors: tuple[MeshFactor, ...]) -> list[tuple[MeshFactor, int]]:
    """Equal factors side by side, each with how many there are."""
    return [(factor, len(list(equal))) for factor, equal in groupby(mesh_factors)]


def _choices(
    cluster: Cluster, run: tuple[MeshFactor, int], names: Iterable[str], symmetric: bool, idle: bool
) -> Iterator[tuple[str, ...]]:
    factor, count = run
    places = range((1 if symmetric else factor.size) if idle else 0)
    roles = (*names, REPLICA, *(f"{IDLE}{place}" for place in places))
    wired = cluster.wired and factor.level == len(cluster.levels) - 1
    if symmetric and not wired:
        return combinations_with_replacement(roles, count)
    return product(roles, repeat=count)


def matrix(layout: Layout, cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """The parallelism matrix: for each role how many ways each level splits it.

    >>> matrix(Layout.parse("sample replica channel"), Cluster.named("summit", node=2))
    {'sample': (2, 1, 1), 'replica': (1, 2, 1), 'channel': (1, 1, 3)}
    """
    mesh_factors = factors(cluster)
    rows: dict[str, list[int]] = {}
    for role, factor in zip(layout.roles, mesh_factors, strict=True):
        name = "idle" if role.startswith(IDLE) else role
        row = rows.setdefault(name, [1] * len(cluster.levels))
        row[factor.level] *= factor.size
    return {name: tuple(row) for name, row in rows.items()}


def devices_of(layout: Layout, mesh_factors: tuple[MeshFactor, ...]) -> int:
    """How many devices work for an operator."""
    return math.prod(
        factor.size
        for role, factor in zip(layout.roles, mesh_factors, strict=True)
        if not role.startswith(IDLE)
    )
