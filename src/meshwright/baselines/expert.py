"""Expert-designed strategies, the usual choice for each kind of model. Enters: a graph, a cluster.
Leaves: a `Plan`.
"""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.baselines.convolutional import one_weird_trick
from meshwright.baselines.gnmt import layers_on_devices
from meshwright.baselines.megatron_tp import megatron_tensor_parallel
from meshwright.baselines.table_wise import tables_on_devices
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan

EXPERTS = (layers_on_devices, megatron_tensor_parallel, one_weird_trick, tables_on_devices)
"""The first that applies is taken: a recurrent network may have attention and tables, a transformer
convolutions and tables."""


def expert(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Recurrent networks, transformers, convolutional networks, recommendation models."""
    for strategy in EXPERTS:
        try:
            return strategy(graph, cluster)
        except InputError:
            continue
    raise InputError(
        f"no expert's strategy is known for graph {graph.name!r}",
        "use data parallelism, or a model with recurrent, attention or convolutional layers or "
        "embedding tables",
    )
