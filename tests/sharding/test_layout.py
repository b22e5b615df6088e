"""Layouts: one for each class of like ones, which of them are legal, and mistakes in sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, permutations, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.graph.pieces import bounds
from meshwright.sharding.layout import (
    REPLICA,
    Layout,
    MeshFactor,
    checked_layout,
    devices_of,
    divides,
    factors,
    layouts,
    matrix,
)
from support.strategies import clusters

EXTENTS = {"sample": (12,), "channel": (6, 18), "inner": (5,)}


def alike(layout: Layout, cluster: Cluster) -> frozenset[tuple[str, ...]]:
    """All layouts that exchanging like factors and moving idle coordinates makes of one."""
    mesh = factors(cluster)
    moved = tuple("@0" if role.startswith("@") else role for role in layout.roles)
    paired = groupby(zip(mesh, moved, strict=True), key=lambda pair: pair[0])
    choices: list[list[tuple[str, ...]]] = []
    for factor, pairs in paired:
        roles = tuple(role for _, role in pairs)
        fixed = cluster.wired and factor.level == len(cluster.levels) - 1
        choices.append([roles] if fixed else list(permutations(roles)))
    return frozenset(tuple(r for part in parts for r in part) for parts in product(*choices))


def every_layout(cluster: Cluster) -> Iterator[Layout]:
    """The full product of roles, by definition."""
    mesh = factors(cluster)
    roles = [(*EXTENTS, REPLICA, *(f"@{x}" for x in range(f.size))) for f in mesh]
    for chosen in product(*roles):
        degrees = Counter[str]()
        for name in EXTENTS:
            degrees[name] = math.prod(
                f.size for f, r in zip(mesh, chosen, strict=True) if r == name
            )
        if all(divides(EXTENTS[name], degree) for name, degree in degrees.items()):
            yield Layout(chosen)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster.named("laptop"),
        Cluster.named("summit", node=2),
        Cluster.named("dgx-h100", node=1, gpu=8),
        Cluster.named("dgx-h100", node=2, gpu=6),
        Cluster.named("gcp-v100", node=2, gpu=4),
        Cluster.named("flexflow-p100", node=4, gpu=1),
    ],
    ids=lambda cluster: f"{cluster.name} {cluster.hierarchy}",
)
def test_one_layout_for_each_class(cluster: Cluster) -> None:
    every = list(every_layout(cluster))
    assert list(layouts(EXTENTS, cluster, symmetric=False)) != []
    assert set(layouts(EXTENTS, cluster, symmetric=False)) == set(every)
    classes = {alike(layout, cluster) for layout in every}
    chosen = [alike(layout, cluster) for layout in layouts(EXTENTS, cluster)]
    assert len(set(chosen)) == len(chosen), "two layouts are alike"
    assert set(chosen) == classes


@given(st.integers(1, 60), st.integers(1, 12))
def test_a_dim_is_cut_if_only_the_last_part_is_shorter(extent: int, degree: int) -> None:
    try:
        parts = bounds(extent, degree)
    except InputError:
        parts = ()
    sizes = [stop - start for start, stop in parts]
    expected = len(sizes) == degree and len(set(sizes[:-1])) <= 1 and min(sizes) > 0
    assert divides((extent,), degree) == expected


@given(st.lists(st.integers(1, 30), min_size=2, max_size=3), st.integers(1, 8))
def test_dims_of_several_extents_are_cut_evenly(extents: list[int], degree: int) -> None:
    even = all(extent % degree == 0 for extent in extents)
    alone = len(set(extents)) == 1 and divides(tuple(extents[:1]), degree)
    assert divides(tuple(extents), degree) == (even or alone)


@given(st.data())
def test_text_and_matrix(data: st.DataObject) -> None:
    cluster = data.draw(clusters(3))
    mesh = factors(cluster)
    roles = [data.draw(st.sampled_from((*EXTENTS, REPLICA, f"@{f.size - 1}"))) for f in mesh]
    layout = Layout(tuple(roles))
    assert Layout.parse(str(layout)) == layout
    assert msgspec.json.decode(msgspec.json.encode(layout), type=Layout) == layout
    rows = matrix(layout, cluster)
    for depth, cardinality in enumerate(cluster.hierarchy):
        assert math.prod(row[depth] for row in rows.values()) == cardinality
    for name, degree in layout.degrees(mesh).items():
        assert math.prod(rows[name]) == degree
    working = cluster.devices // math.prod(rows.get("idle", (1,)))
    assert devices_of(layout, mesh) == working
    for role, place in zip(layout.roles, layout.coordinates(), strict=True):
        assert role == f"@{place}" if role.startswith("@") else place is None


THREE = (MeshFactor(0, 2), MeshFactor(1, 2), MeshFactor(1, 3))


def test_a_good_layout_is_left_alone() -> None:
    layout = Layout.parse("sample @1 channel")
    assert checked_layout(layout, EXTENTS, THREE, "unit 'fc'") is layout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "sample sample",
            "the layout of unit 'fc' has 2 roles, 'sample sample'; give one for each of the "
            "cluster's 3 prime factors.",
        ),
        (
            "sample sample sample sample",
            "the layout of unit 'fc' has 4 roles, 'sample sample sample sample'; give one for each "
            "of the cluster's 3 prime factors.",
        ),
        (
            "sample chanel replica",
            "unit 'fc' cannot be split along 'chanel'; did you mean 'channel'? Known: 'channel', "
            "'inner', 'replica', 'sample'.",
        ),
        (
            "sample @2 replica",
            "unit 'fc' sits at '@2' of factor 1, which has 2; give @0 to @1.",
        ),
        (
            "inner inner replica",
            "unit 'fc' has 5 units along 'inner', which cannot be cut 4 ways; give a degree that "
            "divides them, or that leaves only the last part shorter.",
        ),
        (
            "channel channel replica",
            "unit 'fc' has 6 and 18 units along 'channel', which cannot be cut 4 ways; give a "
            "degree that divides them, or that leaves only the last part shorter.",
        ),
        (
            "sample @x replica",
            "role '@x' of unit 'fc': 'x' is not a whole number; write digits only, as '16'.",
        ),
        (
            "sample @ replica",
            "role '@' of unit 'fc': '' is not a whole number; write digits only, as '16'.",
        ),
        (
            "sample @-1 replica",
            "role '@-1' of unit 'fc': '-1' is not a whole number; write digits only, as '16'.",
        ),
    ],
)
def test_bad_layouts_get_sentences(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_layout(Layout.parse(text), EXTENTS, THREE, "unit 'fc'")
    assert str(caught.value) == sentence
