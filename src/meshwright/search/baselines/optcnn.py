"""OptCNN (Jia et al. 2018): dynamic programming over samples, attributes and parameters. Enters: a
graph, a cluster. Leaves: a `Plan` in which every unit uses all devices and no product is summed up.

The costs are those of `additive`, the minimum is found by `elimination`; the plan's origin says for
how many units it was not certain.
"""

from __future__ import annotations

from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Plan
from meshwright.search.baselines.additive import space
from meshwright.search.baselines.elimination import cheapest


def optcnn(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """The layouts whose costs add up to the least."""
    found = space(graph, cluster)
    answer = cheapest(found.costs)
    chosen = [own[x] for own, x in zip(found.layouts, answer.choice, strict=True)]
    how = f"beam over {answer.left} of {len(chosen)} units" if answer.left else "exact"
    return Plan.of(f"optcnn ({how})", graph, cluster, chosen)
