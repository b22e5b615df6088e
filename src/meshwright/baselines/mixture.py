"""Expert parallelism (EP) on top of data parallelism, as mixtures of experts are trained
(Lepikhin et al. 2020, Rajbhandari et al. 2022). Enters: a graph with routed experts. Leaves: a
`Plan`.

Every factor cuts samples, but experts are cut along as many factors inside a machine as there are
experts for, so that tokens travel over its fast links alone. The optimizer's state is in shards
(ZeRO 1), without which few mixtures fit.
"""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.baselines.roles import (
    batch_factors,
    cutting,
    intra_machine_factors,
    named_split,
    with_samples,
)
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units

KIND, EXPERT = "routed_experts", "expert"


def has_experts(graph: OperatorGraph) -> bool:
    """Whether there are experts to which tokens are routed."""
    return any(operator.kind == KIND for operator in graph.operators)


def expert_parallel(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Experts on factors inside a machine, samples on all others."""
    mesh_factors, parts = factors(cluster), units(graph)
    cuts = [(unit, split) for unit in parts if (split := _split(unit)) is not None]
    held = cutting(cuts, intra_machine_factors(cluster), mesh_factors) if cuts else ()
    if not held:
        raise InputError(
            f"graph {graph.name!r} has no experts that the devices of a machine can share",
            "use expert parallelism for mixtures of experts",
        )
    batch = batch_factors(parts, range(len(mesh_factors)), mesh_factors)
    planned = [
        with_samples(
            {} if _split(unit) is None else dict.fromkeys(held, EXPERT), unit, batch, mesh_factors
        )
        for unit in parts
    ]
    return Plan.of("expert parallel", graph, cluster, planned, Options(zero=1))


def _split(unit: OpGroup) -> int | None:
    """The split along experts."""
    routed = unit.members[0].call.kind == KIND
    return named_split(unit, EXPERT) if routed else None
