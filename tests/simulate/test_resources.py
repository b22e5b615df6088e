"""Resources of machines, against owners counted device by device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.integers import from_digits
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.layout import factors
from meshwright.sharding.states import WHOLE, at
from meshwright.simulate.resources import ResourceClasses, places, subcube
from support.strategies import clusters

Owner = tuple[int, int]
"""The kind of a resource and the number of its owner."""


def owners(cluster: Cluster, device: int) -> set[Owner]:
    """What a device uses: its own stream, and of every link the instance of its owner."""
    used = {(0, device)}
    kind, blocks = 0, dict(cluster.levels[-1].blocks)
    for level in cluster.levels:
        for link in level.links:
            kind += 1
            if link.per == "cluster":
                used.add((kind, 0))
            elif link.per in blocks:
                size = blocks[link.per]
                inner = cluster.hierarchy[-1]
                used.add((kind, device // inner * inner + device % inner // size))
            else:
                below = cluster.hierarchy[cluster.level_index(link.per) + 1 :]
                used.add((kind, device // int(np.prod(below, dtype=int))))
    return used


def members(classes: ResourceClasses, cube: int) -> list[int]:
    return [
        int(r) for r in classes.set_resource[classes.set_start[cube] : classes.set_start[cube + 1]]
    ]


def names_of(
    cluster: Cluster, apart: list[bool], classes: ResourceClasses
) -> dict[int, frozenset[Owner]]:
    """For each resource the owners that it stands for, as the classes of devices use them."""
    counting = [f for f, telling in enumerate(apart) if telling]
    sizes = [factor.size for factor in factors(cluster)]
    by_owner: dict[frozenset[Owner], set[int]] = {}
    for device in product(*map(range, sizes)):
        roles = np.array([at(x) if f in counting else WHOLE for f, x in enumerate(device)], np.int8)
        resources = members(classes, int(subcube(roles, classes.radix)))
        assert len(resources) == len(set(resources))
        for kind, owner in owners(cluster, from_digits(device, sizes)):
            (resource,) = (r for r in resources if classes.kind[r] == kind)
            by_owner.setdefault(frozenset([(kind, owner)]), set()).add(resource)
    standing: dict[int, set[Owner]] = {}
    for owner_set, resource_set in by_owner.items():
        assert len(resource_set) == 1, "one instance of a link is two resources"
        standing.setdefault(resource_set.pop(), set()).update(owner_set)
    return {resource: frozenset(own_set) for resource, own_set in standing.items()}


@given(clusters(3))
def test_nothing_apart_is_one_of_each(cluster: Cluster) -> None:
    classes = places(cluster, [False] * len(factors(cluster)))
    kinds = 1 + sum(len(level.links) for level in cluster.levels)
    assert classes.kind.tolist() == list(range(kinds))
    assert members(classes, 0) == list(range(kinds))
    assert classes.set_start.tolist() == [0, kinds]


@given(clusters(3))
def test_all_apart_is_the_whole_machine(cluster: Cluster) -> None:
    apart = [True] * len(factors(cluster))
    classes = places(cluster, apart)
    standing = names_of(cluster, apart, classes)
    assert sorted(standing) == list(range(len(classes.names)))
    assert all(len(owner_set) == 1 for owner_set in standing.values())
    assert len(set(standing.values())) == len(standing)
    assert int((classes.kind == 0).sum()) == cluster.devices


@given(st.data())
def test_a_subcube_has_the_resources_of_its_devices(data: st.DataObject) -> None:
    cluster = data.draw(clusters(3))
    own_factors = factors(cluster)
    classes = places(cluster, [True] * len(own_factors))
    roles = [data.draw(st.sampled_from((WHOLE, 0, *map(at, range(f.size))))) for f in own_factors]
    cube = members(classes, int(subcube(np.array(roles, np.int8), classes.radix)))
    inside = [
        device
        for device in product(*(range(f.size) for f in own_factors))
        if all(role >= WHOLE or role == at(x) for role, x in zip(roles, device, strict=True))
    ]
    expected = set()
    for device in inside:
        alone = np.array([at(x) for x in device], np.int8)
        expected.update(members(classes, int(subcube(alone, classes.radix))))
    assert cube == sorted(expected)


@pytest.mark.parametrize("apart", list(product((False, True), repeat=3)))
@pytest.mark.parametrize("name", ["summit", "gcp-v100", "dgx-a100"])
def test_some_apart_is_one_for_each_class(name: str, apart: tuple[bool, ...]) -> None:
    cluster = Cluster.named(name, **({"node": 2} if name == "summit" else {"node": 2, "gpu": 4}))
    assert len(factors(cluster)) == 3
    classes = places(cluster, apart)
    standing = names_of(cluster, list(apart), classes)
    devices = int(np.prod([f.size for f, a in zip(factors(cluster), apart, strict=True) if a]))
    assert int((classes.kind == 0).sum()) == devices
    owned = [owner for owner_set in standing.values() for owner in owner_set]
    every = {owner for device in range(cluster.devices) for owner in owners(cluster, device)}
    assert len(owned) == len(every)
    assert set(owned) == every
