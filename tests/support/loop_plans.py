"""Plans by hand of the model that `loop_bodies` trains: DP, TP, PP, ZeRO."""

from __future__ import annotations

from torch.nn import functional

from meshwright.capture.example import Example
from meshwright.capture.load import load_graph
from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Options, Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support import loop_bodies as bodies


def graph_of(rate: float = 0.0) -> OperatorGraph:
    """The model, with so much dropout."""
    tokens, scale, targets = bodies.batch_of()
    example = Example(
        model=bodies.net_of(rate),
        inputs=(tokens, scale),
        loss=functional.cross_entropy,
        targets=(targets,),
    )
    return load_graph(example).graph


GRAPH = graph_of()


def plan_of(*roles: str, options: Options | None = None, graph: OperatorGraph = GRAPH) -> Plan:
    """One role for each two-way level."""
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [Layout(tuple(role_of(unit, role) for role in roles)) for unit in units(graph)]
    return Plan.of("by hand", graph, cluster, layouts, options)


def role_of(unit: OpGroup, role: str) -> str:
    """A role, as a unit calls it; what cannot be cut so is copied."""
    if role == "sample" and unit.samples is not None:
        return unit.splits[unit.samples].name
    return role if role in unit.extents else "replica"


def staged(inner: str = "", graph: OperatorGraph = GRAPH, options: Options | None = None) -> Plan:
    """Two stages, each on one device or on two."""
    own = units(graph)
    cluster = Cluster.named("laptop").resized({"process": 4 if inner else 2})
    layouts = []
    for number, unit in enumerate(own):
        stage = f"@{int(number >= len(own) // 2)}"
        layouts.append(Layout((stage, role_of(unit, inner)) if inner else (stage,)))
    return Plan.of("by hand", graph, cluster, layouts, options)


def masking_plans() -> list[Plan]:
    """Plans of two devices for the model with dropout."""
    graph = graph_of(rate=0.5)
    return [
        plan_of("sample", graph=graph),
        plan_of("channel", graph=graph),
        plan_of("sample", graph=graph, options=Options(zero=3)),
        staged(graph=graph),
    ]
