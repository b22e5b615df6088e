"""Resource equivalence classes: one representative of interchangeable devices and links. Enters: a
cluster, and the factors along which operators may sit at one coordinate. Leaves: resources and sets
of them.

Devices that differ only along other factors do the same in every operator: one stands for all of
them, and so does one instance of a link for all instances that only such factors tell apart. A
subcube says for each factor whether all its coordinates are meant or one of them; its number is
that of the digits (0 for all, 1 + coordinate for one) of the factors that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.base.integers import from_digits
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL
from meshwright.simulate.tasks import Indices, Ints


class ResourceClasses(NamedTuple):
    """Resources and the sets of them that subcubes are."""

    names: tuple[str, ...]
    """Of the resources."""
    kind: Indices
    """[resources] 0 for a device's compute stream, then the links in the order of the levels."""
    set_start: Indices
    set_resource: Indices
    radix: Ints
    """[factors] how many digits a factor has in the number of a subcube: 1 if it does not count."""


@compiled
def subcube(roles: Codes, radix: Ints) -> int:
    """The number of the subcube on which an operator or a tensor with these roles lies."""
    number = 0
    for f in range(len(roles)):
        number *= radix[f]
        if radix[f] > 1 and roles[f] < PARTIAL:
            number += PARTIAL - roles[f]
    return number


def places(cluster: Cluster, apart: Sequence[bool]) -> ResourceClasses:
    """The resources, if only some factors tell devices apart."""
    mesh_factors = factors(cluster)
    counting = [i for i, telling in enumerate(apart) if telling]
    names: list[str] = []
    kinds: list[int] = []
    number: dict[tuple[int, object], int] = {}

    def resource(kind: int, instance: tuple[object, ...], name: str) -> int:
        key = (kind, instance)
        if key not in number:
            number[key] = len(names)
            names.append(name)
            kinds.append(kind)
        return number[key]

    uses: dict[tuple[int, ...], list[int]] = {}
    for coordinates in product(*(range(mesh_factors[i].size) for i in counting)):
        at = dict(zip(counting, coordinates, strict=True))
        uses[coordinates] = [
            resource(kind, instance, name) for kind, instance, name in _touched(cluster, at)
        ]
    starts, members = [0], []
    for cube in product(*(range(mesh_factors[i].size + 1) for i in counting)):
        inside = product(
            *(
                range(mesh_factors[i].size) if d == 0 else (d - 1,)
                for i, d in zip(counting, cube, strict=True)
            )
        )
        members += sorted({r for coordinates in inside for r in uses[coordinates]})
        starts.append(len(members))
    return ResourceClasses(
        names=tuple(names),
        kind=np.array(kinds, np.int32),
        set_start=np.array(starts, np.int32),
        set_resource=np.array(members, np.int32),
        radix=np.array(
            [factor.size + 1 if apart[i] else 1 for i, factor in enumerate(mesh_factors)], np.int64
        ),
    )


def _touched(cluster: Cluster, at: dict[int, int]) -> Iterator[tuple[int, tuple[object, ...], str]]:
    """The kind, instance and name of every resource that the devices at some coordinates use."""
    mesh_factors = factors(cluster)
    digits = [at.get(i, 0) for i in range(len(mesh_factors))]
    device = from_digits(digits, [factor.size for factor in mesh_factors])
    yield 0, tuple(at.items()), f"device {device}"
    kind, innermost = 0, len(cluster.levels) - 1
    blocks = dict(cluster.levels[innermost].blocks)
    for level in cluster.levels:
        for link in level.links:
            kind += 1
            owner = cluster.owner_level(link.per)
            block = blocks.get(link.per)
            above = [i for i, factor in enumerate(mesh_factors) if factor.level <= owner]
            if block is not None:
                inner = [i for i in above if mesh_factors[i].level == innermost]
                position = from_digits(
                    [digits[i] for i in inner], [mesh_factors[i].size for i in inner]
                )
                outer = tuple(
                    (i, at[i]) for i in above if i in at and mesh_factors[i].level < innermost
                )
                instance: tuple[object, ...] = (outer, position // block)
            else:
                instance = tuple((i, at[i]) for i in above if i in at)
            whose = from_digits([digits[i] for i in above], [mesh_factors[i].size for i in above])
            yield kind, instance, f"{link.name} of {link.per} {whose}"
