"""OptCNN's additive cost model (Jia et al. 2018) as a graph of node and edge costs. Enters: a
graph, a cluster. Leaves: a `CostGraph` in nanoseconds, and the layouts that it chooses among.

All that `simulate.additive` knows but updates, added up: nothing overlaps here. Units that share
parameters and can be cut alike, as the steps of a recurrent layer, are one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.baselines.choices import candidate_layouts
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import TensorEdge
from meshwright.plan.options import Options
from meshwright.sharding.layout import REPLICA, Layout
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.solvers.variable_elimination import CostGraph


class AdditiveSpace(NamedTuple):
    """Costs, for each node the layouts that are its choices, and for each unit its node."""

    costs: CostGraph
    layouts: tuple[tuple[Layout, ...], ...]
    node: tuple[int, ...]

    def chosen(self, choice: Sequence[int]) -> list[Layout]:
        """The layouts of all units."""
        return [self.layouts[node][choice[node]] for node in self.node]


def space(graph: OperatorGraph, cluster: Cluster) -> AdditiveSpace:
    """The costs of all layouts that split samples, attributes and parameters on all devices."""
    choices = candidate_layouts(units(graph), cluster)
    prices = CollectivePrices(Pricer(cluster, algorithm="best"))
    costing = AdditiveCosts(graph, cluster, prices, pricer_of(cluster.device), Options())
    node = _nodes(costing.bundles, choices)
    numbered = {
        id(chosen): _numbered(unit, chosen)
        for unit, chosen in zip(costing.units, choices, strict=True)
    }
    roles = [numbered[id(chosen)] for chosen in choices]
    choosing = {at: choices[unit] for unit, at in enumerate(node)}
    costs = [np.zeros(len(choosing[at])) for at in range(len(choosing))]
    for unit, at in enumerate(node):
        forward, backward, sums, _ = costing.unit(unit, roles[unit])
        costs[at] = costs[at] + forward + backward + sums
    edges: dict[tuple[int, int], Costs] = {}
    known: dict[object, Costs] = {}
    for joint in costing.joints:
        # Layers that repeat share their choices, and what they cost.
        key = (joint.kind, id(choices[joint.maker]), id(choices[joint.reader]))
        if key not in known:
            consumers = costing.consumer(joint.kind, roles[joint.maker], roles[joint.reader])
            known[key] = consumers.forward + consumers.backward + consumers.sums
        joint_costs = known[key]
        i, j = node[joint.maker], node[joint.reader]
        if i == j:
            costs[i] = costs[i] + np.diagonal(joint_costs)
        else:
            pair, edge = ((i, j), joint_costs) if i < j else ((j, i), joint_costs.T)
            edges[pair] = edges[pair] + edge if pair in edges else edge
    return AdditiveSpace(CostGraph(costs, edges), tuple(choosing.values()), tuple(node))


def _nodes(joined: Sequence[TensorEdge], choices: Sequence[tuple[Layout, ...]]) -> list[int]:
    """The node of each unit: one for all that share a parameter and can be cut alike."""
    first = list(range(len(choices)))
    for bundle in joined:
        for consumer in bundle.consumers:
            if bundle.parameters and choices[consumer.unit] is choices[bundle.maker]:
                first[consumer.unit] = min(first[consumer.unit], first[bundle.maker])
    number: dict[int, int] = {}
    return [number.setdefault(unit, len(number)) for unit in first]


def _numbered(unit: OpGroup, chosen: Sequence[Layout]) -> NDArray[np.int8]:
    """For each layout and factor the number of the split, WHOLE for copies."""
    number = {split.name: n for n, split in enumerate(unit.splits)} | {REPLICA: WHOLE}
    rows = [[number[role] for role in layout.roles] for layout in chosen]
    return np.array(rows, np.int8).reshape(len(chosen), -1)
