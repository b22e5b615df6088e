"""Counterfactual table: each decision of a plan with its runner-up. Enters: decisions, the plan
that they are of. Leaves: cells in the field's words, and what `explain`, `plan` and the report say
beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.base.quantities import counted, format_seconds
from meshwright.explain.decisions import Decision
from meshwright.plan.plan import Plan
from meshwright.report.annotated import by_level
from meshwright.report.outline import describe_layout
from meshwright.report.terminal_tables import new_table
from meshwright.sharding.layout import Layout

HEADS = ("decision~", "chosen~", "runner-up~", "step with it>", "longer>", "note~")


def table_of_decisions(
    decisions: Sequence[Decision], step: float, most: int, plan: Plan | None = None
) -> Table:
    """For each decision the runner-up, and what a step takes with it."""
    table = new_table(*HEADS)
    for decision in decisions[:most]:
        table.add_row(*decision_cells(decision, step, plan))
    return table


def decision_cells(decision: Decision, step: float, plan: Plan | None = None) -> tuple[str, ...]:
    """A line of the table."""
    return (
        decision.subject,
        *decision_words(decision, plan),
        "" if decision.best is None else format_seconds(decision.best),
        "" if decision.best is None else f"{decision.best / step - 1:+.1%}",
        decision_note(decision),
    )


def decision_words(decision: Decision, plan: Plan | None) -> tuple[str, str]:
    """What was chosen and what else could have been; layouts of units as DP, TP and so on, or by
    level where both would read the same.
    """
    texts = decision.chosen, decision.runner_up or ""
    name = decision.subject.partition(" (+")[0]
    if plan is None or name not in plan.layout or decision.runner_up is None:
        return texts
    unit = next(unit for unit in plan.units if unit.name == name)
    layouts = [Layout.parse(text) for text in texts]
    chosen, other = (describe_layout(plan, unit, layout) for layout in layouts)
    if chosen == other:
        chosen, other = (by_level([layout], plan.cluster) for layout in layouts)
    # Within a level only the order of the factors differs.
    return texts if chosen == other else (chosen, other)


def decision_note(decision: Decision) -> str:
    """What is known of a runner-up: by a search that was told it, or with everything else kept."""
    if decision.searched is None:
        return f"{decision.note}; {decision.found}" if decision.found else decision.note
    kept = "" if decision.step is None else f"; all else kept: {format_seconds(decision.step)}"
    return "; ".join(filter(None, (f"searched: {decision.fix}", decision.found))) + kept


def describe_decisions(decisions: Sequence[Decision], most: int) -> str:
    """What the table of decisions shows, and what not."""
    if any(decision.searched is not None for decision in decisions):
        text = (
            "Each decision beside the best other one: searched again with that fixed where the "
            "note has an option of 'meshwright plan PLAN --start PLAN', or else with everything "
            "else kept."
        )
    else:
        text = "Each decision beside the best other one, with everything else kept."
    if len(decisions) > most:
        text += f" {counted(len(decisions) - most, 'more decision')}: --top {len(decisions)}."
    return text
