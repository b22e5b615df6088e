"""What a search for a plan could answer, made of the baselines without any search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from meshwright.cluster.model import Cluster
from meshwright.foundation.units import Bytes, Seconds
from meshwright.graph.model import OperatorGraph
from meshwright.search.baselines import applicable
from meshwright.search.candidate import Candidate
from meshwright.search.joint.question import Planned, Question, Stopped
from meshwright.simulate.simulation import simulate


@cache
def simulated(graph: OperatorGraph, cluster: Cluster) -> tuple[tuple[str, Candidate], ...]:
    """Every baseline that applies."""
    return tuple(
        (name, Candidate(plan, simulate(plan).prediction))
        for name, plan in applicable(graph, cluster).items()
    )


def front(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other beats in both time and memory."""
    found: list[Candidate] = []
    for own in sorted(candidates, key=lambda it: (it.prediction.step, it.prediction.memory.total)):
        held = own.prediction.memory.total
        if not found or held < found[-1].prediction.memory.total:
            found.append(own)
    return tuple(found)


def answer(
    question: Question, stopped: Stopped = "budget", rewrites: tuple[str, ...] = ()
) -> Planned:
    """The fastest baseline that fits, or the smallest if none does."""
    baselines = simulated(question.graph, question.cluster)
    candidates = [own for _, own in baselines]
    fitting = [own for own in candidates if own.fits(question.memory)]
    smallest = min(candidates, key=lambda own: own.prediction.memory.total)
    best = min(fitting, key=lambda own: own.prediction.step) if fitting else smallest
    return Planned(
        question=question,
        best=best,
        baselines=baselines,
        refused=(("walking", "there is no path; take one."),),
        front=front(candidates),
        bound=Seconds(best.prediction.step * 0.8),
        graphs=3,
        rewrites=rewrites,
        simulated=len(candidates),
        history=((0.5, best.prediction.step),),
        seconds=2.0,
        stopped=stopped,
    )


def asked(graph: OperatorGraph, cluster: Cluster, memory: int | None = None) -> Question:
    """A question with the memory that devices have, or with another limit."""
    limit = cluster.device.memory if memory is None else Bytes(memory)
    return Question(graph=graph, cluster=cluster, memory=limit)
