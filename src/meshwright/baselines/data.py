"""Data parallelism (DP), and ZeRO stages 1 to 3 on top of it (Rajbhandari et al. 2020). Enters: a
graph, a cluster. Leaves: a `Plan`.

Every factor cuts the samples. If there are too few of them, the innermost factors do and the
others hold copies, so that gradients are summed inside machines only.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.baselines.roles import batch_factors, with_samples
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units


def data_parallel(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Samples on all factors.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... output y''')
    >>> data_parallel(graph, Cluster.named("laptop")).layouts
    (('y', 'sample sample'),)
    """
    return Plan.of("data parallel", graph, cluster, _layouts(graph, cluster))


def zero(stage: int) -> Callable[[OperatorGraph, Cluster], Plan]:
    """Data parallelism with optimizer state (1), gradients (2) and parameters (3) in shards."""

    def planned(graph: OperatorGraph, cluster: Cluster) -> Plan:
        layouts = _layouts(graph, cluster)
        return Plan.of(f"zero {stage}", graph, cluster, layouts, Options(zero=stage))

    return planned


def _layouts(graph: OperatorGraph, cluster: Cluster) -> list[Layout]:
    mesh_factors, parts = factors(cluster), units(graph)
    batch = batch_factors(parts, range(len(mesh_factors)), mesh_factors)
    return [with_samples({}, unit, batch, mesh_factors) for unit in parts]
