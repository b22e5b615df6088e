"""The prices by level equal those computed device by device, link by link."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.cost.backend import Shape
from meshwright.cost.double_tree import tree_depth, tree_edges
from meshwright.cost.flows import rounds
from meshwright.cost.link_load import latency, loads
from meshwright.cost.pattern import groups, members
from support.links import busiest_seconds_per_byte, round_latencies
from support.strategies import clusters, patterns


@pytest.mark.parametrize("shape", Shape)
@given(data=st.data())
def test_busiest_link_equals_the_slow_twin(shape: Shape, data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    pattern = data.draw(patterns(cluster))
    sizes = tuple(members(digits) for digits in pattern)
    assume(math.prod(sizes) > 1)
    networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
    fast = [
        max(load.seconds_per_byte for load in loads(cluster, pattern, moved))
        for moved in rounds(shape, sizes, networked)
    ]
    slow = busiest_seconds_per_byte(cluster, groups(pattern), shape)
    assert fast == pytest.approx(slow, rel=1e-12)
    waits = [latency(cluster, pattern, moved) for moved in rounds(shape, sizes, networked)]
    assert waits == pytest.approx(round_latencies(cluster, groups(pattern), shape), rel=1e-12)


@given(st.integers(1, 200))
def test_both_trees_reach_everybody(size: int) -> None:
    edges = tree_edges(size)
    for tree in (edges[: size - 1], edges[size - 1 :]):
        parent = dict(tree)
        assert len(parent) == size - 1
        (root,) = set(range(size)) - parent.keys()
        deepest = 0
        for rank in range(size):
            steps = 0
            while rank != root:
                rank, steps = parent[rank], steps + 1
            deepest = max(deepest, steps)
        assert deepest == tree_depth(size)
