"""Plans that give up cutting samples along a factor."""

from __future__ import annotations

from collections import Counter

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.moves.replicate_move import copied
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate.problem import codes_of, layouts_of

GRAPH = parse_graph("""graph pair
input x: float32[n=64, i=8]
parameter v: float32[h=8, i=8]
parameter w: float32[o=8, h=8]
operator a: a: float32[n=64, h=8] = linear(x, v)
operator b: b: float32[n=64, o=8] = linear(a, w)
operator s: loss: float32[] = mean(b)
output loss
loss loss""")


def test_each_level_gives_up_its_first_factor() -> None:
    cluster = Cluster.named("dgx-h100", node=4, gpu=2)
    groups, rows = units(GRAPH), ("sample sample sample", "channel sample replica", "sample @0 @1")
    roles = codes_of(groups, [Layout.parse(row) for row in rows], len(factors(cluster)))
    texts = [
        list(map(str, layouts_of(groups, it))) for it in copied(groups, roles, factors(cluster))
    ]
    assert texts == [
        ["replica sample sample", "channel sample replica", "replica @0 @1"],
        ["sample sample replica", "channel sample replica", "sample @0 @1"],
    ]


def test_copying_is_found_where_it_pays() -> None:
    """Four nodes of 16 GPUs that share a card: half of the nodes' worth of samples is faster."""
    cluster = Cluster.named("gcp-a100", node=4)
    graph = cast_graph(load_model("zoo:gpt2-xl?layers=8", 192).graph, "bfloat16")
    question = PlanRequest(
        graph=graph,
        cluster=cluster,
        memory=cluster.device.memory,
        training=Options(optimizer="adam", mixed=True),
    )
    plan = best_plan(question, Budget(proposals=50), rewrites=False).best.plan
    whole = Counter(text.split()[0] for _, text in plan.layouts).most_common(1)
    assert whole[0][0] == "replica"
