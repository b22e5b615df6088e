"""Runners-up that hold: the largest decisions searched again. Enters: a plan, its decisions, a
budget. Leaves: the decisions, the largest with the step of the best plan that a search finds when
the runner-up is fixed, as `plan --fix` and `--pin` fix it.

A runner-up by itself keeps everything else as it was chosen for another decision, and so says at
most that the step could be so long. Those that are faster than what was chosen come first: nothing
is called faster that a search did not confirm.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.units import Seconds, format_bytes
from meshwright.cost.backend import backend_named
from meshwright.explain.decisions import Decision
from meshwright.plan.model import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.constraints import (
    MICRO_BATCHES,
    RECOMPUTE,
    ZERO,
    Constraints,
    parse_constraints,
    pins_of,
)
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.question import PlanRequest, PlanResult

DECISIONS, FASTER = 5, 2
"""Decisions that are searched again, and of these, those whose runner-up is faster by itself."""

LEAST = 1e-3
"""The share of a step that a faster runner-up must save to be called so."""


def confirmed(
    plan: Plan,
    question: PlanRequest,
    decisions: Sequence[Decision],
    budget: Budget,
    *,
    step: float,
    told: Callable[[str], None] = lambda doing: None,
) -> tuple[Decision, ...]:
    """The decisions, the largest of them searched again with so much for each; the largest
    difference first. `step` is that of the plan.
    """
    found = list(decisions)
    for number in _largest(decisions, step):
        told(f"searching with {found[number].fix}")
        found[number] = _searched(plan, question, found[number], budget)
    return tuple(sorted(found, key=lambda own: math.inf if own.best is None else -own.best))


def _largest(decisions: Sequence[Decision], step: float) -> list[int]:
    """The places of what is searched: the runners-up that are faster, then those that cost most."""
    places = [n for n, own in enumerate(decisions) if own.fix and own.step is not None]
    faster = [n for n in places if decisions[n].fits and is_faster(decisions[n], step)]
    faster.sort(key=lambda n: decisions[n].step or step)
    longest = sorted(places, key=lambda n: -(decisions[n].step or 0.0))
    return list(dict.fromkeys((*faster[:FASTER], *longest)))[:DECISIONS]


def is_faster(own: Decision, step: float) -> bool:
    """Whether the runner-up takes so much less than the plan's step that it is worth a word."""
    return own.best is not None and own.best < step * (1 - LEAST)


def _searched(plan: Plan, question: PlanRequest, own: Decision, budget: Budget) -> Decision:
    try:
        planned = search_with(plan, question, constraints_of(own.fix), budget)
    except InputError as error:
        return own._replace(found=error.problem)
    best = planned.best.prediction
    lacks = best.memory.total - question.memory
    return own._replace(
        searched=Seconds(best.step),
        fits=lacks <= 0,
        found=f"does not fit, by {format_bytes(lacks)}" if lacks > 0 else "",
    )


def constraints_of(fix: str) -> Constraints:
    """Constraints from what `plan` is told.

    >>> constraints_of("--fix zero=1 --pin 'h.*.fc=sample channel'").pinned
    (('h.*.fc', 'sample channel'),)
    """
    words = shlex.split(fix)
    given: dict[str, list[str]] = {"--fix": [], "--pin": [], "--forbid": []}
    for option, value in zip(words[::2], words[1::2], strict=True):
        given[option].append(value)
    return parse_constraints(given["--pin"], given["--forbid"], given["--fix"])


def search_with(
    plan: Plan, question: PlanRequest, constraints: Constraints, budget: Budget
) -> PlanResult:
    """The best plan under constraints that a search from the plan finds, changed to keep them."""
    asked = msgspec.structs.replace(question, constraints=constraints)
    start = start_under(plan, constraints)
    return best_plan(asked, budget, backend=backend_named(plan.backend), start=start)


def start_under(plan: Plan, constraints: Constraints) -> Plan | None:
    """The plan with the options and layouts that constraints fix, everything else kept; None if
    that is no plan. Stages and degrees stay what they are.
    """
    fixed = {
        name.replace("-", "_"): value == "yes" if name == RECOMPUTE else int(value)
        for name, value in constraints.fixed
        if name in (MICRO_BATCHES, ZERO, RECOMPUTE)
    }
    pinned = {unit.name: pins_of(constraints, unit)[-1:] for unit in plan.units}
    rows = tuple(
        (name, " ".join(pinned[name][0]) if pinned[name] else text) for name, text in plan.layouts
    )
    if not fixed and rows == plan.layouts:
        return plan
    try:
        return plan.changed(options=msgspec.structs.replace(plan.options, **fixed), layouts=rows)
    except InputError:  # A layout that so many micro-batches are too small for, or any coordinate.
        return None
