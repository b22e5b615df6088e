"""OptCNN (Jia et al. 2018): dynamic programming over samples, attributes and parameters. Enters: a
graph, a cluster. Leaves: a `Plan` in which every unit uses all devices and no product is summed up.

The costs are those of `additive`, the minimum is found by `variable_elimination`; the plan's origin
says over how many nodes (units, or units that share weights) it was not certain.
"""

from __future__ import annotations

from meshwright.baselines.additive_graph import space
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.solvers.variable_elimination import cheapest


def optcnn(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """The layouts whose costs add up to the least."""
    choice_space = space(graph, cluster)
    answer = cheapest(choice_space.costs)
    nodes = len(choice_space.layouts)
    how = f"beam over {answer.left} of {nodes} nodes" if answer.left else "exact"
    return Plan.of(f"optcnn ({how})", graph, cluster, choice_space.chosen(answer.choice))
