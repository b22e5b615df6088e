"""Parallel operators say what a layout asks for, and taking them out gives back the graph."""

from __future__ import annotations

import pytest

from meshwright.baselines import applicable
from meshwright.capture.load import load_model
from meshwright.cluster.model import Cluster
from meshwright.graph.text import parse_graph
from meshwright.sharding.layout import Layout
from meshwright.sharding.parallel_graph import erase, parallel_graph

CHAIN = parse_graph(
    """graph g
input x: float32[n=8, i=4]
parameter w: float32[o=6, i=4]
operator y: y: float32[n=8, o=6] = linear(x, w)
operator z: z: float32[n=8, o=6] = relu(y)
output z"""
)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("sample sample", "sample sample", ""),
        ("sample replica", "sample sample", "y for z: Partition dim 0 over 1"),
        ("sample channel", "sample replica", "y for z: Combine dim 1 over 1; Replicate over 1"),
        (
            "sample channel",
            "sample sample",
            "y for z: Combine dim 1 over 1; Partition dim 0 over 1",
        ),
        ("inner inner", "@0 sample", "y for z: Reduce over 0,1; Partition dim 0 over 1"),
        ("@0 @0", "@1 @0", "y for z: Move over 0"),
        ("@0 @0", "replica sample", "y for z: Partition dim 0 over 1; Replicate over 0"),
    ],
)
def test_what_lies_between_two_layouts(first: str, second: str, expected: str) -> None:
    parallel = parallel_graph(CHAIN, [Layout.parse(first), Layout.parse(second)])
    between = str(parallel).splitlines()[1:-1]
    assert "\n".join(between) == expected


@pytest.mark.parametrize("model", ["zoo:bert-large/tiny", "zoo:inception-v3/tiny", "zoo:nmt/tiny"])
def test_erasing_gives_back_the_graph(model: str) -> None:
    graph = load_model(model).graph
    for plan in applicable(graph, Cluster.named("laptop")).values():
        layouts = [plan.layout[unit.name] for unit in plan.units]
        assert erase(parallel_graph(graph, layouts)) == graph
