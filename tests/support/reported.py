"""Plans to report on, without a search: a tiny one, and three of real models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.expert import expert
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.explain.decisions import Decision
from meshwright.explain.evaluate_plan import judged
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.report.page.page import page
from meshwright.search.joint.request.question import PlanResult, SearchImprovement
from meshwright.simulate.simulation import Simulation, simulate

DECISIONS = (
    Decision("micro-batches", "8", "16", None, "nothing else is possible"),
    Decision("placement", "sample over node", None, None, "no difference"),
)

MODELS = ("mlp", "bert-large", "inception-v3", "llama3-70b")
"""The last on 1,024 devices."""


def _llama(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Tensor 8, pipeline 8, data 16, so that it fits."""
    degrees = ParallelConfig(data=16, tensor=8, pipeline=8, micro_batches=16)
    return configured(graph, cluster, replace(degrees, recompute=True, zero=1))


PLANNERS: Mapping[str, tuple[int, Cluster]] = {
    "mlp": (256, Cluster.named("laptop")),
    "bert-large": (64, Cluster.named("gcp-a100", node=4)),
    "inception-v3": (64, Cluster.named("dgx-h100", node=2)),
    "llama3-70b": (256, Cluster.named("dgx-h100", node=128)),
}


@cache
def simulated(model: str) -> Simulation:
    """A model under a strategy that experts would take."""
    batch, cluster = PLANNERS[model]
    graph = load_model(f"zoo:{model}", batch).graph
    strategy = {"mlp": data_parallel, "llama3-70b": _llama}.get(model, expert)
    return simulate(strategy(graph, cluster))


@cache
def planned(model: str) -> PlanResult:
    """What would be answered, without baselines where they take long."""
    plan, small = simulated(model).plan, model in ("mlp", "inception-v3")
    outcome = judged(plan, baselines=model == "mlp", bound=small)
    step = outcome.best.prediction.step
    found_at = ((0.4, 2.0), (1.5, 1.2), (6.0, 1.0)) if model == "bert-large" else ()
    history = tuple(SearchImprovement(at, times * step, "walking") for at, times in found_at)
    return outcome._replace(history=history, seconds=10.0)


@cache
def reported(model: str) -> str:
    """The page."""
    return page(planned(model), DECISIONS, simulated(model))
