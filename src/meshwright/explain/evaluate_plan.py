"""Evaluation of a given plan without a search. Enters: a plan, from wherever it comes. Leaves: the
`PlanResult` that the search would answer if this plan were its best.

The question is rebuilt from the plan: its graph, its cluster, what it decided about training. How
the plan was found is not known here: there is no history, and no graph besides its own.
"""

from __future__ import annotations

import time

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines import applied
from meshwright.bounds.lower_bound import lower_bound
from meshwright.cost.backend import backend_named
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.tables import pricer_of
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.candidate import Candidate, pareto_front
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.joint.trials.optimality import TIGHT
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import prices_of, simulate


def judged(
    plan: Plan,
    *,
    memory: Bytes | None = None,
    programs: bool = True,
    baselines: bool = True,
    bound: bool = True,
) -> PlanResult:
    """A plan beside what needs no search, and how far from the best it can be.

    A device may hold what it has, unless a limit is given. Without baselines there are none to
    compare with; without a bound it is 0.
    """
    began = time.monotonic()
    question = question_of(plan, memory)
    prices = prices_of(plan, programs=programs)
    operators = pricer_of(plan.cluster.device)
    simulation = simulate(plan, prices, operators)
    best = Candidate(with_programs(plan, simulation.problem), simulation.prediction)
    named: list[tuple[str, Candidate]] = []
    refused: list[tuple[str, str]] = []
    for name, other in applied(plan.graph, plan.cluster, question.training) if baselines else ():
        if isinstance(other, InputError):
            refused.append((name, str(other)))
        else:
            named.append((name, Candidate(other, simulate(other, prices, operators).prediction)))
    return PlanResult(
        question=question,
        best=best,
        baselines=tuple(named),
        refused=tuple(refused),
        front=pareto_front((best, *(candidate for _, candidate in named))),
        bound=_bound(best, operators) if bound else Seconds(0.0),
        graphs=1,
        rewrites=plan.rewrites,
        simulated=1 + len(named),
        history=(),
        seconds=time.monotonic() - began,
        stopped="complete",
    )


def question_of(plan: Plan, memory: Bytes | None = None) -> PlanRequest:
    """What a plan answers; of its options the optimizer and mixed precision were the user's."""
    return PlanRequest(
        graph=plan.graph,
        cluster=plan.cluster,
        memory=plan.cluster.device.memory if memory is None else memory,
        training=Options(optimizer=plan.options.optimizer, mixed=plan.options.mixed),
    )


def _bound(best: Candidate, operators: OperatorPricer) -> Seconds:
    """What no plan for the graph beats, with one micro-batch or as many as this one has; asked for
    as a search does (`Optimality`), so that it is the same figure.
    """
    plan, step = best.plan, best.prediction.step
    least = step
    for count in sorted({1, plan.options.micro_batches}, reverse=True):
        bound = lower_bound(
            plan.graph,
            plan.cluster,
            operators=operators,
            backend=backend_named(plan.backend),
            optimizer=plan.options.optimizer,
            micro_batches=(count,),
            wanted=Seconds(min(least, TIGHT * step)),
        )
        least = min(least, bound.seconds)
    return least
