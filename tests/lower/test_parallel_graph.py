"""Parallel operators say what a plan asks for, and taking them out gives back the graph."""

from __future__ import annotations

import pytest

from meshwright.baselines import applicable
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.text import parse_graph
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.parallel_operators import erase, written
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan

CHAIN = parse_graph(
    """graph g
input x: float32[n=8, i=4]
parameter w: float32[o=6, i=4]
operator y: y: float32[n=8, o=6] = linear(x, w)
operator z: z: float32[n=8, o=6] = relu(y)
operator s: loss: float32[] = mean(z)
output loss
loss loss"""
)


def plan_of(*layouts: str, micro_batches: int = 1) -> Plan:
    return Plan(
        origin="by hand",
        graph=CHAIN,
        cluster=Cluster.named("laptop"),
        layouts=tuple(zip("yz", layouts, strict=True)),
        options=Options(micro_batches=micro_batches),
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("sample sample", "sample sample", ""),
        ("sample replica", "sample sample", "y for z: Partition dim 0 over 1 [exchange of boxes]"),
        (
            "sample channel",
            "sample replica",
            "y for z: Combine dim 1 over 1; Replicate over 1 [AllGather]",
        ),
        (
            "sample channel",
            "sample sample",
            "y for z: Combine dim 1 over 1; Partition dim 0 over 1 [exchange of boxes]",
        ),
        (
            "inner inner",
            "@0 sample",
            "y for z: Reduce over 0,1; Partition dim 0 over 1 [ReduceScatter, Reduce]",
        ),
        ("@0 @0", "@1 @0", "y for z: Move over 0 [exchange of boxes]"),
        (
            "@0 @0",
            "replica sample",
            "y for z: Partition dim 0 over 1; Replicate over 0 [exchange of boxes, Broadcast]",
        ),
    ],
)
def test_what_lies_between_two_layouts(first: str, second: str, expected: str) -> None:
    text = written(ParallelGraph(plan_of(first, second))).splitlines()
    between = [line for line in text if line.startswith("y for z")]
    assert "\n".join(between) == expected


def test_micro_batches_are_pipeline_and_batch() -> None:
    plan = plan_of("sample replica", "sample replica", micro_batches=2)
    assert written(ParallelGraph(plan)).splitlines() == [
        "x for y: Pipeline dim 0 over 2 micro-batches",
        "y: sample replica",
        "z: sample replica",
        "loss: Batch over 2 micro-batches",
    ]


@pytest.mark.parametrize("model", ["zoo:bert-large/tiny", "zoo:inception-v3/tiny", "zoo:nmt/tiny"])
def test_erasing_gives_back_the_graph(model: str) -> None:
    graph = load_model(model).graph
    for plan in applicable(graph, Cluster.named("laptop")).values():
        assert erase(ParallelGraph(plan)) == graph


@pytest.mark.parametrize("word", ["parameter", "frozen"])
def test_an_uneven_bias_lies_with_all_parts_of_a_sum(word: str) -> None:
    """Whether it is trained or not: only the first part adds it, and all hold it."""
    graph = parse_graph(
        f"""graph g
input x: float32[n=8, i=4]
{word} w: float32[o=5, i=4]
{word} b: float32[o=5]
operator y: y: float32[n=8, o=5] = linear(x, w, b)
operator s: loss: float32[] = mean(y)
loss loss"""
    )
    layouts = (("y", "channel inner"), ("s", "replica replica"))
    plan = Plan(origin="by hand", graph=graph, cluster=Cluster.named("laptop"), layouts=layouts)
    assert ParallelGraph(plan).made["b"].forward.box((1, 1)) == ((3, 5),)
