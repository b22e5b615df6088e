"""Compiled code, compiled before a clock runs. Enters and leaves: nothing."""

from __future__ import annotations

import logging
import time
from functools import cache

from meshwright.cluster.model import Cluster
from meshwright.foundation.compiled import compilations
from meshwright.graph.text import parse_graph
from meshwright.search.baselines.data import data_parallel
from meshwright.search.baselines.optcnn import optcnn
from meshwright.search.budget import Budget
from meshwright.search.exhaustive import exhaustive
from meshwright.search.joint.bound import lower_bound
from meshwright.search.joint.staging import staged
from meshwright.search.mcmc import search
from meshwright.simulate.held import within
from meshwright.simulate.problem import Problem
from meshwright.simulate.simulation import simulate

TINY = """graph tiny
input x: float32[n=4, k=8]
parameter w: float32[o=8, k=8]
operator y: y: float32[n=4, o=8] = linear(x, w)
operator z: z: float32[n=4, o=8] = relu(y)
output z"""

_log = logging.getLogger(__name__)


@cache
def warm_up() -> None:
    """Run all that compiles once, on a tiny graph; a process does so once."""
    began = time.monotonic()
    tiny = parse_graph(TINY)
    cluster = Cluster.named("laptop", process=2)
    plan = data_parallel(tiny, cluster)
    simulate(plan)
    problem = Problem(tiny, cluster)
    roles = problem.codes([plan.layout[unit.name] for unit in problem.units])
    search(problem, {"data parallel": roles}, Budget(proposals=1))
    exhaustive(problem, fits=within(problem, cluster.device.memory))
    optcnn(tiny, cluster)
    lower_bound(tiny, cluster)
    staged([1.0, 1.0], [0.0, 0.0, 0.0], 2, 2)
    made, kept = compilations()
    taken = time.monotonic() - began
    _log.info("%d functions compiled, %d found on disk, in %.2f s", made, kept, taken)
