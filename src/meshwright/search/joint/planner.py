"""The joint planner: an anytime search over algebra, layouts, placement and reductions. Enters: a
`PlanRequest`, a budget. Leaves: a `PlanResult`.

    baselines   what needs no search is simulated first
    coarse      the layouts that add up to the least in every global config (`coarse_search`); the
                best few are simulated and laid out finer (`layout_dp`)
    degrees     while the bound is far: configurations by degrees (`degrees`); nothing but these
                where degrees of TP, CP or EP are held
    schedules   virtual stages of the best pipelines (`interleave_move`); of plans that are too
                large as many layers as must run again (`recompute_layers`)
    algebra     graphs that compute the same (`rewrites`) in the best global configs
    options     one option of the best plan after the other is changed, and whether it copies
                (`replicate_move`)
    walks       Metropolis walks with delta simulation from the best plans (`metropolis_runs`)
    deepen      then more of them, every global decision as if it were fixed (`as_if_fixed`),
                roles of like units
    everything  where a question has few plans, all of them (`enumerate_plans`)
    fixed       while the bound is far: all of this for every single `--fix` (`as_if_fixed.fixed`)
    again       while the bound is far and time is left: walks with other seeds, and climbing from
                the best plan with roles drawn at random (`deepen.perturb_plan`)
    tidy        copies of a layer that differ for nothing are laid out alike
                (`unify_layers`)
Every phase only adds candidates (`phases`); the best of them, checked anew, is the answer.
Everything follows from the seed, unless time runs out; an interrupt or the end of the budget leads
to the best so far.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from meshwright.base.garbage import reduced_garbage_collection
from meshwright.base.quantities import Seconds
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.tables import pricer_of
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.joint.jit_warm_up import warm_up
from meshwright.search.joint.moves.as_if_fixed import fixed_questions, worth_fixing
from meshwright.search.joint.moves.deepen import climbed, perturb_plan
from meshwright.search.joint.moves.held_degrees import refuse_degrees
from meshwright.search.joint.moves.unify_layers import unify_layer_layouts
from meshwright.search.joint.phases import Progress, SearchPhases
from meshwright.search.joint.request.consistent import no_plan_error, refuse_impossible
from meshwright.search.joint.request.constraints import held_degrees
from meshwright.search.joint.request.question import PlanRequest, PlanResult, Stopped
from meshwright.search.joint.request.violations import violations
from meshwright.search.joint.trials.clock import Clock
from meshwright.search.joint.trials.optimality import Optimality
from meshwright.search.joint.warm_starts import starts
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import simulate

ENDING = 0.1
"""The share of the budget that is kept for laying layers out alike and for the bound."""

FIXING, PROMISING = 0.25, 4
"""The share of the time left in which global configs of questions with a fix are laid out, and how
many of these questions are searched to the end."""

IDLE = 20
"""Rounds in a row without a new plan after which nothing is left to try."""


def best_plan(
    question: PlanRequest,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    operators: OperatorPricer | None = None,
    programs: bool = True,
    rewrites: bool = True,
    seed: int = 0,
    cores: int = 1,
    start: Plan | None = None,
    bounded: bool = True,
    progress: Progress = lambda _: None,
) -> PlanResult:
    """The best plan that a budget buys; operators cost what the device's roofline says, if no
    prices are given. Its lower bound is 0 if nobody wants it (`bounded`): it takes its time.

    Several cores start processes: who asks for them must be importable (`multiprocessing`).
    """
    refuse_impossible(question)
    refuse_degrees(question)
    warm_up()
    pricer = operators or pricer_of(question.cluster.device)
    links = Pricer(question.cluster, backend, algorithm="best")
    prices = CollectivePrices(links, programs=programs)
    clock = Clock(budget, ENDING)
    bounds = Optimality(question, prices, pricer)
    run = SearchPhases(question, budget, clock, prices, pricer, bounds, seed, cores, progress)
    with reduced_garbage_collection():
        return _planned(run, _searched(run, start, rewrites), bounded=bounded)


def whole(planned: PlanResult) -> PlanResult:
    """A result that no interrupt cut short; for who searches several times, and is to end then."""
    if planned.stopped == "interrupted":
        raise KeyboardInterrupt
    return planned


def _searched(run: SearchPhases, start: Plan | None, rewrites: bool) -> Stopped:
    """All phases, one after the other; leaves why they ended."""
    stopped: Stopped = "complete"
    try:
        run.baselines(start)
        if held_degrees(run.question.constraints):
            run.configurations()
            return "budget" if run.clock.enough() else "complete"
        run.global_configs()
        run.phases(rewrites)
        _fixed(run, rewrites)
        _again(run)
        stopped = "budget" if run.clock.enough() else "complete"
        _tidy(run)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return stopped


def _fixed(search: SearchPhases, rewrites: bool) -> None:
    """Lay global configs of all questions out in which something is fixed; search the most
    promising as if the user had asked them (successive halving).
    """
    near, late = search.allowance(limited=False), search.clock.hurry(FIXING)
    if search.proved or not worth_fixing(search.question, search.budget) or near():
        return
    promising: list[SearchPhases] = []
    for question in fixed_questions(search.question):
        if late() or near():
            return
        run = _with(search, question)
        with _taking(search, run):
            run.global_configs()
        promising = sorted([*promising, run], key=SearchPhases.promise)[:PROMISING]
    for run in promising:
        if search.clock.enough() or near():
            return
        run.clock = search.share()
        with _taking(search, run):
            run.phases(rewrites)


def _with(search: SearchPhases, question: PlanRequest) -> SearchPhases:
    """A search for a question in which something is fixed, with the same baselines."""
    search.tell(f"with --fix {'='.join(question.constraints.fixed[0])}")
    run = SearchPhases(
        question, search.budget, search.share(), search.prices, search.operators, search.optimality,
        search.seed, search.cores, lambda _: search.tell(""),
    )  # fmt: skip
    run.named = search.named
    for _, candidate in search.named:
        run.trials.add(candidate, run.context)
    return run


@contextmanager
def _taking(search: SearchPhases, run: SearchPhases) -> Iterator[None]:
    """Keep the best plan of another search, even if it is interrupted."""
    before = run.kept.simulated
    try:
        yield
    finally:
        search.elsewhere += run.kept.simulated - before
        if (best := run.kept.best) is not None:
            graph, steps = best.candidate.plan.graph, run.trials.steps(best.context)
            search.trials.add(best.candidate, search.trials.context(graph, steps))


def _again(run: SearchPhases) -> None:
    """Use the time that is left while the bound is far; a number of proposals is no time."""
    enough, idle, number = run.allowance(), 0, 0
    if run.budget.seconds is None or run.proved:
        return
    while idle < IDLE and not enough() and (best := run.kept.best) is not None:
        idle, number, before = idle + 1, number + 1, run.kept.simulated
        names = {candidate.plan.origin for _, candidate in run.named}
        run.walk(list(starts(run.kept.ranked(), run.context, names)), number)
        run.tell("climbing from elsewhere")
        drawn = random.Random(f"{run.seed} {number}")
        if (begun := perturb_plan(run.trials, best, drawn)) is not None:
            climbed(run.trials, begun, drawn, enough)
        run.options()
        if run.kept.simulated > before:
            idle = 0


def _tidy(run: SearchPhases) -> None:
    """Lay copies of a layer out alike where that costs next to nothing."""
    best = run.kept.best
    if best is None or run.proved or run.question.minimize != "time":
        return
    others = [candidate for _, candidate in run.named] + ([run.started] if run.started else [])
    tidied = unify_layer_layouts(run.question, best, others, run.clock.over)
    if tidied is not None:
        run.kept.best = run.kept.add(tidied, best.context, None)


def _planned(run: SearchPhases, stopped: Stopped, *, bounded: bool) -> PlanResult:
    """What was found."""
    best = run.kept.best
    if best is None and stopped == "interrupted":
        raise KeyboardInterrupt
    if best is None:
        raise no_plan_error(run.question, stopped)
    plan = replace(best.candidate.plan, rewrites=run.trials.steps(best.context))
    simulation = simulate(plan, run.prices, run.operators)
    candidate = Candidate(with_programs(plan, simulation.problem), simulation.prediction)
    wrong = violations(plan, run.question.constraints)
    assert not wrong, f"the search broke a constraint: {wrong[0]}"
    return PlanResult(
        question=run.question,
        best=candidate,
        baselines=tuple(run.named),
        refused=tuple(run.refused),
        front=run.kept.front(),
        bound=Seconds(min(run.bound(best) if bounded else 0.0, simulation.prediction.step)),
        graphs=len(run.trials.contexts),
        rewrites=plan.rewrites,
        simulated=run.kept.simulated + run.elsewhere,
        history=tuple(run.history),
        seconds=run.clock.seconds,
        stopped=stopped,
    )
