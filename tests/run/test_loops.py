"""Loops as PyTorch users write them: by every plan what one device gives, or a sentence."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from meshwright.capture.example import Example
from meshwright.capture.load import load_graph
from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Options, Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.unit import Unit
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


def plan_of(*roles: str, options: Options | None = None, graph: OperatorGraph = GRAPH) -> Plan:
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [Layout(tuple(role_of(unit, role) for role in roles)) for unit in units(graph)]
    return Plan.of("by hand", graph, cluster, layouts, options)


def role_of(unit: Unit, role: str) -> str:
    """A role, as a unit calls it; what cannot be cut so is copied."""
    if role == "sample" and unit.samples is not None:
        return unit.splits[unit.samples].name
    return role if role in unit.extents else "replica"


def staged(inner: str = "", graph: OperatorGraph = GRAPH) -> Plan:
    """Two stages, each on one device or on two."""
    own = units(graph)
    cluster = Cluster.named("laptop").resized({"process": 4 if inner else 2})
    layouts = []
    for number, unit in enumerate(own):
        stage = f"@{int(number >= len(own) // 2)}"
        layouts.append(Layout((stage, role_of(unit, inner)) if inner else (stage,)))
    return Plan.of("by hand", graph, cluster, layouts)


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


SHARES = dict.fromkeys([name for name in PLANS if name not in ("tp 2", "pp 2")], 2)
"""Into how many parts ranks cut the samples, where into any."""


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    return bodies.looped_alone()


@pytest.mark.parametrize("ranks", [2, 4])
def test_loops_are_those_of_one_device(ranks: int, alone: dict[str, list[float]]) -> None:
    plans = {name: plan for name, plan in PLANS.items() if plan.cluster.devices == ranks}
    average = bodies.averaged_alone()
    model = bodies.Alone()
    plain = bodies.trained(model, torch.optim.SGD(model.parameters(), 0.5), clip=False)
    for found in run_ranks(bodies.looped, plans, ranks=ranks):
        assert isinstance(found, dict)
        for name, own in found.items():
            for loop, numbers in alone.items():
                assert own[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)
            assert all(own["states"].values()), (name, own["states"])
            assert own["averages"][0] == pytest.approx(average, rel=1e-9), name
            assert all(own["refused"].values()), (name, own["refused"])
            shares = SHARES.get(name, 1)
            assert own["shares"][:2] == (shares, 3 * bodies.BATCH // shares), name
            assert own["shares"][2] == pytest.approx(plain, rel=1e-9), name


def masked_graph() -> OperatorGraph:
    tokens, scale, targets = bodies.batch_of()
    example = Example(
        model=bodies.net_of(rate=0.5),
        inputs=(tokens, scale),
        loss=functional.cross_entropy,
        targets=(targets,),
    )
    return load_graph(example).graph


def test_masks_are_the_same_by_every_plan() -> None:
    graph = masked_graph()
    plans = [
        plan_of("sample", graph=graph),
        plan_of("channel", graph=graph),
        plan_of("sample", graph=graph, options=Options(zero=3)),
        staged(graph=graph),
    ]
    for found in run_ranks(bodies.masked, plans, ranks=2):
        assert isinstance(found, list)
        first, *others = found
        for other in others:
            assert other == pytest.approx(first, rel=1e-9)
        one, again, *rest = first
        assert one == pytest.approx(again, rel=1e-12)
        assert len({round(loss, 9) for loss in (one, *rest)}) == 1 + len(rest)
