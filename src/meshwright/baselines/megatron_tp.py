"""Megatron-LM's tensor parallelism x data parallelism (Shoeybi et al. 2019). Enters: a graph with
repeated attention layers. Leaves: a `Plan`.

Layers are cut inside (`tensor`) along the factors of a machine; all other factors cut samples.
Norms, residuals and embeddings are copies on the factors inside; the head is cut along words, and
so is its loss, where words can be cut as heads can. Degrees that a person
chooses, with pipelines and words cut too, are for `configs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.baselines.roles import (
    batch_factors,
    cutting,
    intra_machine_factors,
    with_samples,
)
from meshwright.baselines.tensor import ATTENTION, head_splits, tensor_splits
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout, MeshFactor, factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units


def megatron_tensor_parallel(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Tensor parallel on as many factors inside a machine as heads allow, data parallel besides."""
    parts, mesh_factors = units(graph), factors(cluster)
    splits = _checked_splits(graph, parts)
    cuts = [(parts[number], split) for number, split in splits.items()]
    tensor = cutting(cuts, intra_machine_factors(cluster), mesh_factors)
    head = head_splits(graph, parts)
    if len(cutting([(parts[n], s) for n, s in head.items()], tensor, mesh_factors)) == len(tensor):
        splits |= head
    planned = _layouts(parts, mesh_factors, splits, tensor)
    return Plan.of("expert: megatron", graph, cluster, planned)


def _checked_splits(graph: OperatorGraph, parts: Sequence[OpGroup]) -> dict[int, int]:
    splits = tensor_splits(graph, parts)
    cut = {member.operator for number in splits for member in parts[number].members}
    heads = [op for op in graph.operators if op.name in cut and op.kind in (ATTENTION, "softmax")]
    if len(heads) < 2:
        raise InputError(
            f"graph {graph.name!r} has no repeated attention layers that heads can cut",
            "use Megatron for transformers",
        )
    return splits


def _layouts(
    parts: Sequence[OpGroup],
    mesh_factors: Sequence[MeshFactor],
    splits: dict[int, int],
    tensor: Sequence[int],
) -> list[Layout]:
    free = [factor for factor in range(len(mesh_factors)) if factor not in tensor]
    batch = batch_factors(parts, free, mesh_factors)
    layouts = []
    for number, unit in enumerate(parts):
        split = splits.get(number)
        name = REPLICA if split is None else unit.splits[split].name
        layouts.append(with_samples(dict.fromkeys(tensor, name), unit, batch, mesh_factors))
    return layouts
