"""Counterfactual search: the largest decisions searched again with the runner-up fixed. Enters: a
plan, its decisions, a budget. Leaves: the decisions, the largest with the step of the best plan
that a search finds when the runner-up is fixed, as `plan --fix` and `--pin` fix it.

A runner-up by itself keeps everything else as it was chosen for another decision, and so says at
most that the step could be so long. Those that are faster than what was chosen come first: nothing
is called faster that a search did not confirm. What is searched gets cheaper, and others larger
than it: they are searched in turn, until the largest are all searched ones. They stand first.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, format_bytes
from meshwright.cost.backend import backend_named
from meshwright.explain.decisions import Decision
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan, whole
from meshwright.search.joint.request.constraints import (
    MICRO_BATCHES,
    SHARD_WITHIN,
    YES_OR_NO,
    ZERO,
    Constraints,
    parse_constraints,
    pins_of,
)
from meshwright.search.joint.request.question import PlanRequest, PlanResult

DECISIONS, FASTER, MOST = 5, 2, 12
"""How many of the largest decisions are searched ones, how many whose runner-up is faster by itself
are searched first, and how many searches there are at most."""

LEAST = 1e-3
"""The share of a step that a faster runner-up must save to be called so."""


def confirm_decisions(
    plan: Plan,
    question: PlanRequest,
    decisions: Sequence[Decision],
    budget: Budget,
    *,
    step: float,
    progress: Callable[[str], None] = lambda doing: None,
) -> Iterator[tuple[Decision, ...]]:
    """After each search all decisions, the largest of them searched again with so much for each:
    those first, the largest difference first. `step` is that of the plan.
    """
    rows, tried = list(decisions), list[int]()
    while len(tried) < MOST and (number := _next(rows, tried, step)) is not None:
        progress(f"searching with {rows[number].fix}")
        rows[number] = _searched(plan, question, rows[number], budget)
        tried.append(number)
        yield tuple(sorted(rows, key=lambda row: (row.searched is None, -_length(row))))


def _next(decisions: Sequence[Decision], tried: Sequence[int], step: float) -> int | None:
    """The place of what is to be searched: a runner-up that is faster, then what costs most of all
    that can be searched; None if that is searched.
    """
    places = [
        n for n, decision in enumerate(decisions) if decision.fix and decision.step is not None
    ]
    faster = [
        n for n in places if n not in tried and decisions[n].fits and is_faster(decisions[n], step)
    ]
    if faster and len(tried) < FASTER:
        return min(faster, key=lambda n: _length(decisions[n]))
    refused = {n for n in tried if decisions[n].searched is None}
    longest = sorted(set(places) - refused, key=lambda n: -_length(decisions[n]))
    return next((n for n in longest[:DECISIONS] if n not in tried), None)


def _length(decision: Decision) -> float:
    return -math.inf if decision.best is None else decision.best


def is_faster(decision: Decision, step: float) -> bool:
    """Whether the runner-up takes so much less than the plan's step that it is worth a word."""
    return decision.best is not None and decision.best < step * (1 - LEAST)


def _searched(plan: Plan, question: PlanRequest, decision: Decision, budget: Budget) -> Decision:
    try:
        planned = search_with(plan, question, constraints_of(decision.fix), budget)
    except InputError as error:
        return decision._replace(found=error.problem)
    best = planned.best.prediction
    lacks = best.memory.total - question.memory
    return decision._replace(
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
    options: dict[str, list[str]] = {"--fix": [], "--pin": [], "--forbid": []}
    for option, value in zip(words[::2], words[1::2], strict=True):
        options[option].append(value)
    return parse_constraints(options["--pin"], options["--forbid"], options["--fix"])


def search_with(
    plan: Plan, question: PlanRequest, constraints: Constraints, budget: Budget
) -> PlanResult:
    """The best plan under constraints that a search from the plan finds, changed to keep them."""
    asked = msgspec.structs.replace(question, constraints=constraints)
    start = warm_start_under_constraints(plan, constraints)
    return whole(best_plan(asked, budget, backend=backend_named(plan.backend), start=start))


def warm_start_under_constraints(plan: Plan, constraints: Constraints) -> Plan | None:
    """The plan with the options and layouts that constraints fix, everything else kept; None if
    that is no plan. Stages and degrees stay what they are.
    """
    fixed = {
        name.replace("-", "_"): value == "yes" if name in YES_OR_NO else int(value)
        for name, value in constraints.fixed
        if name in (MICRO_BATCHES, ZERO, SHARD_WITHIN, *YES_OR_NO)
    }
    pinned = {unit.name: pins_of(constraints, unit)[-1:] for unit in plan.units}
    rows = tuple(
        (name, " ".join(pinned[name][0]) if pinned[name] else text) for name, text in plan.layouts
    )
    if not fixed and rows == plan.layouts:
        return plan
    kept = plan.options.with_zero(int(fixed.get("zero", plan.options.zero)))
    try:
        return plan.changed(options=msgspec.structs.replace(kept, **fixed), layouts=rows)
    except InputError:  # A layout that so many micro-batches are too small for, or any coordinate.
        return None
