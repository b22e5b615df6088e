"""JIT warm-up: Numba functions compiled before a search's clock runs. Enters and leaves:
nothing.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from itertools import combinations

import numpy as np

from meshwright.base import compiled
from meshwright.baselines.data import data_parallel
from meshwright.baselines.optcnn import optcnn
from meshwright.bounds.lower_bound import lower_bound
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.tables import pricer_of
from meshwright.exact.exhaustive import exhaustive
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.coarse.global_config import GlobalConfig
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.coarse.layout_dp import LayoutWeights
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.mcmc.parallel_chains import search
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.memory.memory_timeline import within
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import simulate
from meshwright.solvers.variable_elimination import CostGraph, bounded

TINY = """graph tiny
input x: float32[n=4, k=8]
parameter w: float32[o=8, k=8]
operator y: y: float32[n=4, o=8] = linear(x, w)
operator z: z: float32[n=4, o=8] = relu(y)
output z"""

_log = logging.getLogger(__name__)


def _sketch(graph: OperatorGraph, cluster: Cluster) -> None:
    """Lay out a pipeline of two stages."""
    question = PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory)
    prices = CollectivePrices(Pricer(cluster, algorithm="best"))
    context = GraphContext(question, graph, prices, pricer_of(cluster.device))
    context.solution(GlobalConfig((0,), Options(micro_batches=2)), LayoutWeights(), fine=True)


@cache
def warm_up() -> None:
    """Run all that compiles once, on a tiny graph; a process does so once."""
    began = time.monotonic()
    tiny = parse_graph(TINY)
    cluster = Cluster.named("laptop", process=2)
    plan = data_parallel(tiny, cluster)
    simulate(plan)
    problem = StepModel(tiny, cluster)
    roles = problem.codes([plan.layout[unit.name] for unit in problem.units])
    search(problem, {"data parallel": roles}, Budget(proposals=1))
    exhaustive(problem, fits=within(problem, cluster.device.memory))
    optcnn(tiny, cluster)
    lower_bound(tiny, cluster)
    _sketch(tiny, cluster)
    # Four nodes joined each with each are not eliminated without loosening one of them.
    bounded(
        CostGraph([np.zeros(1)] * 4, dict.fromkeys(combinations(range(4), 2), np.zeros((1, 1))))
    )
    fresh, kept = compiled.compilations()
    taken = time.monotonic() - began
    _log.info("%d functions compiled, %d found on disk, in %.2f s", fresh, kept, taken)
