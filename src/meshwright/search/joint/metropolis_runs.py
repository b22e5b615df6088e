"""Metropolis (MCMC) runs from the best plans, one after the other or in parallel. Enters: starts,
each on one graph with one set of options. Leaves: the best roles of each.

The starts are walked from one after the other or, where that takes long, each in a process of its
own. They do not know of each other: the number of cores does not change what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from meshwright.base.processes import available_cores, spread
from meshwright.base.quantities import Seconds
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import Backend
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.compare import told_apart
from meshwright.search.joint.request.constraints import allowed, sitting
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.warm_starts import WarmStart
from meshwright.search.mcmc.parallel_chains import ChainsProgress, search
from meshwright.sharding.reshard import Codes
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.layout_space import group_outside_space, space
from meshwright.simulate.problem import StepModel

PROPOSALS = 600_000
"""For each start and over all units, unless the budget says how many a start has."""

FEWEST, MOST = 2_000, 20_000
"""For each start."""

AFRESH, MOST_AFRESH = 3_000, 100_000
"""For a start afresh: for each unit, and at most."""

PROCESS = 150
"""Units from which on a process of its own pays."""


class _Walk(NamedTuple):
    """All that a process needs to know."""

    number: int
    question: PlanRequest
    graph: OperatorGraph
    options: Options
    roles: dict[str, Codes]
    backend: Backend
    programs: bool
    budget: Budget
    seed: int


def walked(
    starts: list[WarmStart],
    seconds: float | None,
    proposals: int | None,
    seed: int,
    cores: int,
    tell: Callable[[ChainsProgress], None],
) -> Iterator[tuple[WarmStart, Codes]]:
    """The best roles of every start."""
    processes = min(cores, len(starts), available_cores())
    if processes > 1 and any(len(start.context.units) >= PROCESS for start in starts):
        work = [_task(n, start, seconds, proposals, seed) for n, start in enumerate(starts)]
        best_roles = dict(spread(_apart, work, processes))
        yield from (
            (starts[n], roles) for n in sorted(best_roles) if (roles := best_roles[n]) is not None
        )
        return
    for n, warm_start in enumerate(starts):
        share = None if seconds is None else seconds / len(starts)
        task, context = _task(n, warm_start, share, proposals, seed), warm_start.context
        roles, interrupted = _found(task, context.prices, context.operators, tell)
        if roles is not None:
            yield warm_start, roles
        if interrupted:
            raise KeyboardInterrupt


def _task(
    number: int, start: WarmStart, seconds: float | None, proposals: int | None, seed: int
) -> _Walk:
    context = start.context
    most = max(FEWEST, min(MOST, PROPOSALS // len(context.units)))
    if start.afresh:
        most = min(MOST_AFRESH, AFRESH * len(context.units))
    return _Walk(
        number=number,
        question=context.question,
        graph=context.graph,
        options=start.options,
        roles=start.roles,
        backend=context.prices.pricer.backend,
        programs=context.prices.programs,
        budget=Budget(None if seconds is None else Seconds(seconds), proposals or most),
        seed=seed,
    )


def _apart(task: _Walk) -> tuple[int, Codes | None]:
    """A walk in a process of its own."""
    cluster = task.question.cluster
    pricer = Pricer(cluster, task.backend, algorithm="best")
    prices = CollectivePrices(pricer, programs=task.programs)
    roles, _ = _found(task, prices, pricer_of(cluster.device), lambda _: None)
    return task.number, roles


def _found(
    task: _Walk,
    prices: CollectivePrices,
    operators: OperatorPricer,
    progress: Callable[[ChainsProgress], None],
) -> tuple[Codes | None, bool]:
    """The best roles, if any start is inside the space, and whether the walk was interrupted."""
    cluster, constraints = task.question.cluster, task.question.constraints
    apart = zip(told_apart(cluster), sitting(constraints, cluster), strict=True)
    problem = StepModel(
        task.graph,
        cluster,
        task.options,
        apart=[any(flags) for flags in apart],
        prices=prices,
        operators=operators,
        allowed=allowed(constraints, cluster),
    )
    room = space(problem)
    inside = {
        n: roles
        for n, roles in task.roles.items()
        if group_outside_space(problem, room, roles) is None
    }
    if not inside:
        return None, False
    searched = search(problem, inside, task.budget, seed=task.seed, progress=progress)
    return searched.roles, searched.stopped == "interrupted"
