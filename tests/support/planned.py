"""What a search for a plan could answer, made of the baselines without any search."""

from __future__ import annotations

from functools import cache

from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines import applicable
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.candidate import Candidate, pareto_front
from meshwright.search.joint.request.question import (
    PlanRequest,
    PlanResult,
    SearchImprovement,
    Stopped,
)
from meshwright.simulate.simulation import simulate


@cache
def simulated(graph: OperatorGraph, cluster: Cluster) -> tuple[tuple[str, Candidate], ...]:
    """Every baseline that applies."""
    return tuple(
        (name, Candidate(plan, simulate(plan).prediction))
        for name, plan in applicable(graph, cluster).items()
    )


def answer(
    question: PlanRequest, stopped: Stopped = "budget", rewrites: tuple[str, ...] = ()
) -> PlanResult:
    """The fastest baseline that fits, or the smallest if none does."""
    baselines = simulated(question.graph, question.cluster)
    candidates = [candidate for _, candidate in baselines]
    fitting = [candidate for candidate in candidates if candidate.fits(question.memory)]
    smallest = min(candidates, key=lambda candidate: candidate.prediction.memory.total)
    best = min(fitting, key=lambda candidate: candidate.prediction.step) if fitting else smallest
    return PlanResult(
        question=question,
        best=best,
        baselines=baselines,
        refused=(("walking", "there is no path; take one."),),
        front=pareto_front(candidates),
        bound=Seconds(best.prediction.step * 0.8),
        graphs=3,
        rewrites=rewrites,
        simulated=len(candidates),
        history=(SearchImprovement(0.5, best.prediction.step, "baselines"),),
        seconds=2.0,
        stopped=stopped,
    )


def asked(graph: OperatorGraph, cluster: Cluster, memory: int | None = None) -> PlanRequest:
    """A question with the memory that devices have, or with another limit."""
    limit = cluster.device.memory if memory is None else Bytes(memory)
    return PlanRequest(graph=graph, cluster=cluster, memory=limit)
