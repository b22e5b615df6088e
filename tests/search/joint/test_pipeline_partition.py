"""What units and cuts of a pipeline cost, against asking for each unit and reading by itself."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import bundles
from meshwright.plan.options import Options
from meshwright.search.joint.coarse.layout_dp import nodes
from meshwright.search.joint.coarse.pipeline_partition import PipelinePartitions
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, at
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.solvers.chain_partition import staged
from support.training_graphs import tiny

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)


def costing_of(graph: OperatorGraph, micro: int) -> AdditiveCosts:
    prices = CollectivePrices(Pricer(FOUR, algorithm="best"))
    options = Options(micro_batches=micro)
    return AdditiveCosts(graph, FOUR, prices, OperatorPricer(FOUR.device), options)


def crossing(costing: AdditiveCosts, roles: Codes, factor: int) -> list[float]:
    """Reading by reading."""
    beyond = roles.copy()
    beyond[:, factor] = at(1)
    price = [0.0] * len(costing.units)
    last = [0] * len(costing.units)
    for joint in costing.joints:
        consumers = [
            costing.consumer(joint.kind, roles[joint.maker][None], codes[joint.reader][None])
            for codes in (roles, beyond)
        ]
        near, far = (float((consumer.forward + consumer.backward)[0, 0]) for consumer in consumers)
        price[joint.maker] = max(price[joint.maker], far - near)
        last[joint.maker] = max(last[joint.maker], joint.reader)
    return [
        max(0.0, sum(p for maker, p in enumerate(price) if maker < cut <= last[maker]))
        for cut in range(len(costing.units) + 1)
    ]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("name", ["bert-large", "nmt", "inception-v3", "dlrm"])
def test_stages_are_those_of_all_units_one_by_one(name: str, micro: int) -> None:
    graph = tiny(name)
    costing = costing_of(graph, micro)
    node = nodes(graph, costing.units, bundles(graph, costing.units), lambda _: ())
    chosen = np.full((max(node) + 1, len(costing.factors)), WHOLE, np.int8)
    chosen[:, 0] = at(0)
    # Every other node that can be is cut along its first split.
    for unit, number in enumerate(node):
        cut = chosen[number].copy()
        cut[1] = 0
        if number % 2 and costing.units[unit].splits and costing.legal(unit, cut[None])[0]:
            chosen[number] = cut
    roles = chosen[node]
    loads = []
    for unit in range(len(costing.units)):
        costs = costing.unit(unit, roles[unit][None])
        loads.append(round(float(costs.forward[0] + costs.backward[0])))
    staging = PipelinePartitions(costing, node).staged(chosen, (0,), 2)
    expected = staged(loads, crossing(costing, roles, 0), 2, micro)
    assert staging.stage == expected.stage
    assert (staging.pace, staging.crossing) == pytest.approx((expected.pace, expected.crossing))
