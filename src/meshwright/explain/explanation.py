"""Explanation of a plan: step breakdown, critical path, what-if, decisions with runners-up. Enters:
a plan and some seconds. Leaves: an `Explained`: how good it is, what a step waits for, what
everything costs, what would help, and each decision with its runner-up.

What the time does not allow, or an interrupt cuts short, is left out; `stopped` says so. What is
quick comes first: the prediction, the critical path, then what would help, then the decisions. With
a budget for searches the largest decisions are searched again with their runner-up fixed
(`confirm`), and other batches and machines are planned anew (`replan`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from meshwright.base.quantities import Bytes, format_seconds
from meshwright.base.sheet import Sheet, printed
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.cost.tables import pricer_of
from meshwright.explain.confirm import confirm_decisions
from meshwright.explain.critical_path import critical_path
from meshwright.explain.decisions import Decision, explain
from meshwright.explain.evaluate_plan import judged
from meshwright.explain.exposed import (
    CollectiveCost,
    KindCost,
    LinkCost,
    collective_costs,
    kind_costs,
    link_costs,
)
from meshwright.explain.path_breakdown import PathStretch, stretches
from meshwright.explain.replan import Known, Replanned, changes_not_replanned, replanned
from meshwright.explain.step_parts import StepParts, step_parts
from meshwright.explain.what_if import Improvement, helps
from meshwright.graph.text import parse_graph
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.jit_warm_up import TINY
from meshwright.search.joint.request.question import PlanResult, Stopped
from meshwright.simulate.simulation import Simulation, prices_of, simulate

Progress = Callable[[float, str], None]
"""Is told the share of the time that is used, and what is being done."""


class Spending(NamedTuple):
    """Where the time of a step goes."""

    stretches: tuple[PathStretch, ...]
    """What the critical path is made of, the longest first."""
    links: tuple[LinkCost, ...]
    kinds: tuple[KindCost, ...]
    collectives: tuple[CollectiveCost, ...]


@printed
class Explained(NamedTuple):
    """All that can be said of a plan."""

    planned: PlanResult
    """The plan as a question's answer, without baselines."""
    spending: Spending
    parts: StepParts
    """What its step is made of."""
    decisions: tuple[Decision, ...]
    helps: tuple[Improvement, ...]
    stopped: Stopped
    what_ifs: tuple[Replanned, ...] = ()
    """Other batches, machines and limits, planned anew."""

    def sheet(self) -> Sheet:
        """What the step is made of and what would help; a line for each decision."""
        plan, parts = self.planned.plan, self.parts
        facts = [
            ("step", format_seconds(self.planned.best.prediction.step)),
            ("computing", format_seconds(parts.compute)),
            ("exposed communication", format_seconds(parts.exposed)),
            *([("waiting for the host", format_seconds(parts.host))] if parts.host else []),
            ("pipeline bubble", format_seconds(parts.bubble)),
        ]
        facts += [
            (improvement.change, f"{improvement.gain:+.1%}")
            for improvement in self.helps
            if improvement.step is not None
        ]
        return Sheet(
            f"plan '{plan.origin}' of {plan.graph.name} on {plan.cluster.name}, predicted",
            tuple(facts),
            ("decision", "chosen", "runner-up", "step with it"),
            tuple(
                (
                    decision.subject,
                    decision.chosen,
                    decision.runner_up or "",
                    "" if decision.best is None else format_seconds(decision.best),
                )
                for decision in self.decisions
            ),
        )


def explained(
    plan: Plan,
    *,
    seconds: float,
    memory: Bytes | None = None,
    budget: Budget | None = None,
    known: Known = lambda question: None,
    progress: Progress = lambda share, doing: None,
) -> Explained:
    """What there is to say of a plan, in about so many seconds once all is compiled, and a budget
    for each search after that; searches may start from what is `known`.
    """
    progress(0.0, "simulating")
    _warm_up()
    began = time.monotonic()

    def tell(doing: str) -> None:
        progress(min(1.0, (time.monotonic() - began) / seconds), doing)

    def late() -> bool:
        tell("trying what would help")
        return time.monotonic() > began + seconds

    planned = judged(plan, memory=memory, baselines=False)
    limit = planned.question.memory
    prices = prices_of(plan)
    operators = pricer_of(plan.cluster.device)
    simulation = simulate(plan, prices, operators)
    explanation = Explained(
        planned,
        spending(simulation),
        step_parts(simulation),
        decisions=(),
        helps=(),
        stopped="interrupted",
    )
    try:
        explanation = explanation._replace(helps=helps(plan, limit, late))
        decisions = explain(
            plan,
            prices=prices,
            operators=operators,
            memory=limit,
            deadline=began + seconds,
            progress=lambda: tell("trying other decisions"),
        )
    except KeyboardInterrupt:
        return explanation
    stopped: Stopped = "budget" if late() else "complete"
    explanation = explanation._replace(decisions=decisions, stopped=stopped)
    return explanation if budget is None else _searched(explanation, budget, known, progress)


def _searched(
    explanation: Explained, budget: Budget, known: Known, progress: Progress
) -> Explained:
    """What searches add; an interrupt leaves what there is."""
    plan, question = explanation.planned.plan, explanation.planned.question

    def report(doing: str) -> None:
        progress(1.0, doing)

    try:
        step = explanation.planned.best.prediction.step
        for decisions in confirm_decisions(
            plan, question, explanation.decisions, budget, step=step, progress=report
        ):
            explanation = explanation._replace(decisions=decisions)
        for answer in replanned(
            plan, question, budget, report, helps=explanation.helps, known=known
        ):
            explanation = explanation._replace(
                what_ifs=(*explanation.what_ifs, answer),
                helps=changes_not_replanned(explanation.helps, [answer]),
            )
    except KeyboardInterrupt:
        return explanation._replace(stopped="interrupted")
    return explanation


@cache
def _warm_up() -> None:
    """Explain a tiny plan, so that all that compiles has done so; a process does so once."""
    plan = data_parallel(parse_graph(TINY), Cluster.named("laptop", process=2))
    device = plan.cluster.device
    explain(plan, prices=prices_of(plan), operators=pricer_of(device), memory=device.memory)


def spending(simulation: Simulation) -> Spending:
    """Where the time of a simulated step goes."""
    path = critical_path(simulation.problem.tasks, simulation.timeline)
    return Spending(
        stretches(simulation, path),
        link_costs(simulation, path),
        kind_costs(simulation, path),
        collective_costs(simulation, path),
    )
