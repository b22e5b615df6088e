"""One weird trick (Krizhevsky 2014). Enters: a graph with convolutions. Leaves: a `Plan`.

Convolutions and what comes before the first linear layer are data parallel. Linear layers, which
hold most parameters and few activations, are cut along their outputs on all factors; what follows
them stays cut until the next one, which gathers its input.
"""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.baselines.roles import (
    batch_factors,
    cutting,
    follower,
    named_split,
    with_samples,
)
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.states import State
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units

LINEAR = ("linear", "addmm")


def one_weird_trick(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Data parallel convolutions, linear layers cut along their outputs."""
    kinds = {operator.kind for operator in graph.operators}
    if "conv2d" not in kinds or not kinds.intersection(LINEAR):
        raise InputError(
            f"graph {graph.name!r} has no convolutions before linear layers",
            "use one weird trick for convolutional networks",
        )
    mesh_factors, parts = factors(cluster), units(graph)
    batch = batch_factors(parts, range(len(mesh_factors)), mesh_factors)
    cut: dict[str, State] = {}
    layouts: list[Layout] = []
    for unit in parts:
        split = _split(unit, cut)
        roles: dict[int, str] = {}
        if split is not None:
            cut.update((boundary.tensor, boundary.forward[split]) for boundary in unit.outputs)
            for factor in cutting([(unit, split)], range(len(mesh_factors)), mesh_factors):
                roles[factor] = unit.splits[split].name
        layouts.append(with_samples(roles, unit, batch, mesh_factors))
    return Plan.of("expert: one weird trick", graph, cluster, layouts)


def _split(unit: OpGroup, cut: dict[str, State]) -> int | None:
    """The split of a linear layer or of what follows one, by number; None elsewhere."""
    if unit.members[0].call.kind in LINEAR:
        return named_split(unit, "channel")
    split = follower(unit, cut)
    return None if split is None or unit.splits[split].role == "reduction" else split
