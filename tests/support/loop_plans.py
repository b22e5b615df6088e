"""Plans by hand of the model that `loop_bodies` trains: DP, TP, PP, ZeRO."""

from __future__ import annotations

from torch.nn import functional

from meshwright.capture.load import load_graph
from meshwright.capture.source.example import Example
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors, inner_group_sizes
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support import loop_bodies as bodies
from support.state_bodies import Subject, machine_of, random_plan


def graph_of(rate: float = 0.0) -> OperatorGraph:
    """The model, with so much dropout."""
    return _captured(bodies.net_of(rate))


def _captured(net: bodies.Net, *length: int) -> OperatorGraph:
    tokens, scale, targets = bodies.batch_of(0, *length)
    example = Example(
        model=net, inputs=(tokens, scale), loss=functional.cross_entropy, targets=(targets,)
    )
    return load_graph(example).graph


GRAPH = graph_of()
LINES = _captured(bodies.lines_of(), bodies.LENGTH)
FROZEN = _captured(bodies.frozen_net())
SEQUENCE = ("dim1", "row1", "length")
"""What units call the dim of a sequence."""


def plan_of(*roles: str, options: Options | None = None, graph: OperatorGraph = GRAPH) -> Plan:
    """One role for each two-way level."""
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [Layout(tuple(role_of(unit, role) for role in roles)) for unit in units(graph)]
    return Plan.of("by hand", graph, cluster, layouts, options)


def role_of(unit: OpGroup, role: str) -> str:
    """A role, as a unit calls it; what cannot be cut so is copied."""
    if role == "sample" and unit.samples is not None:
        return unit.splits[unit.samples].name
    if role == "sequence":
        role = next((split for split in SEQUENCE if split in unit.extents), "replica")
    return role if role in unit.extents else "replica"


def staged(inner: str = "", graph: OperatorGraph = GRAPH, options: Options | None = None) -> Plan:
    """Two stages, each on one device or on two."""
    groups = units(graph)
    cluster = Cluster.named("laptop").resized({"process": 4 if inner else 2})
    layouts = []
    for number, unit in enumerate(groups):
        stage = f"@{int(number >= len(groups) // 2)}"
        layouts.append(Layout((stage, role_of(unit, inner)) if inner else (stage,)))
    return Plan.of("by hand", graph, cluster, layouts, options)


def twisted(zero: int) -> Plan:
    """Two layers, each cut along the factor along which the other is copied (and sharded)."""
    cluster = Cluster.named("laptop").resized({"process": 4})
    layouts = []
    for unit in units(GRAPH):
        roles = role_of(unit, "channel"), role_of(unit, "sample")
        layouts.append(Layout(roles[::-1] if unit.name.startswith("layers.1") else roles))
    return Plan.of("by hand", GRAPH, cluster, layouts, Options(zero=zero))


def any_plans(ranks: int, count: int) -> list[Plan]:
    """Plans of random layouts, with every stage of ZeRO in turn, at times within neighbours."""
    subject, plans = Subject(GRAPH, {}, {}, {}), list[Plan]()
    known = (0, *inner_group_sizes(factors(machine_of(ranks))))
    for seed in range(count):
        zero = seed % 4
        within = known[seed // 4 % len(known)] if zero else 0
        options = Options(zero=zero, shard_within=within)
        plans.append(random_plan(subject, ranks, seed, options))
    return plans


def masking_plans() -> list[Plan]:
    """Plans of two devices for the model with dropout."""
    graph = graph_of(rate=0.5)
    return [
        plan_of("sample", graph=graph),
        plan_of("channel", graph=graph),
        plan_of("sample", graph=graph, options=Options(zero=3)),
        staged(graph=graph),
    ]
