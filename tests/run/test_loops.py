"""Loops as PyTorch users write them: by every plan what one device gives, or a sentence."""

from __future__ import annotations

import pytest
from torch.nn import functional

from meshwright.capture.example import Example
from meshwright.capture.load import load_graph
from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Options, Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support import loop_bodies as bodies

pytestmark = pytest.mark.ranks


def graph_of() -> OperatorGraph:
    tokens, scale, targets = bodies.batch_of()
    example = Example(
        model=bodies.net_of(),
        inputs=(tokens, scale),
        loss=functional.cross_entropy,
        targets=(targets,),
    )
    return load_graph(example).graph


GRAPH = graph_of()


def plan_of(*roles: str, options: Options | None = None) -> Plan:
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [
        Layout(tuple(role if role in unit.extents else "replica" for role in roles))
        for unit in units(GRAPH)
    ]
    return Plan.of("by hand", GRAPH, cluster, layouts, options)


def staged(inner: str = "") -> Plan:
    """Two stages, each on one device or on two."""
    own = units(GRAPH)
    cluster = Cluster.named("laptop").resized({"process": 4 if inner else 2})
    layouts = []
    for number, unit in enumerate(own):
        stage = f"@{int(number >= len(own) // 2)}"
        role = inner if inner in unit.extents else "replica"
        layouts.append(Layout((stage, role) if inner else (stage,)))
    return Plan.of("by hand", GRAPH, cluster, layouts)


PLANS = {
    "dp 2": plan_of("sample"),
    "tp 2": plan_of("channel"),
    "zero 1": plan_of("sample", options=Options(zero=1)),
    "zero 2": plan_of("sample", options=Options(zero=2)),
    "zero 3": plan_of("sample", options=Options(zero=3)),
    "pp 2": staged(),
    "dp 2 x tp 2, zero 3": plan_of("sample", "channel", options=Options(zero=3)),
    "pp 2 x dp 2": staged("sample"),
}


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    return bodies.looped_alone()


@pytest.mark.parametrize("ranks", [2, 4])
def test_loops_are_those_of_one_device(ranks: int, alone: dict[str, list[float]]) -> None:
    plans = {name: plan for name, plan in PLANS.items() if plan.cluster.devices == ranks}
    average = bodies.averaged_alone()
    for found in run_ranks(bodies.looped, plans, ranks=ranks):
        assert isinstance(found, dict)
        for name, own in found.items():
            for loop, numbers in alone.items():
                assert own[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)
            assert all(own["states"].values()), (name, own["states"])
            assert own["averages"][0] == pytest.approx(average, rel=1e-9), name
            assert all(own["refused"].values()), (name, own["refused"])
