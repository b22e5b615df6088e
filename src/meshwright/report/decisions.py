"""Decisions with their runners-up: a table. Enters: decisions, the plan that they are of. Leaves:
cells in the field's words, and what `explain`, `plan` and the report say beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.base.units import counted, format_seconds
from meshwright.explain.decisions import Decision
from meshwright.plan.model import Plan
from meshwright.report.annotated import by_level
from meshwright.report.outline import describe_layout
from meshwright.report.tables import new_table
from meshwright.sharding.layout import Layout

HEADS = ("decision~", "chosen~", "runner-up~", "step with it>", "longer>", "note~")


def table_of_decisions(
    decisions: Sequence[Decision], step: float, most: int, plan: Plan | None = None
) -> Table:
    """For each decision the runner-up, and what a step takes with it."""
    table = new_table(*HEADS)
    for own in decisions[:most]:
        table.add_row(*decision_cells(own, step, plan))
    return table


def decision_cells(own: Decision, step: float, plan: Plan | None = None) -> tuple[str, ...]:
    """A line of the table."""
    return (
        own.subject,
        *decision_words(own, plan),
        "" if own.best is None else format_seconds(own.best),
        "" if own.best is None else f"{own.best / step - 1:+.1%}",
        decision_note(own),
    )


def decision_words(own: Decision, plan: Plan | None) -> tuple[str, str]:
    """What was chosen and what else could have been; layouts of units as DP, TP and so on, or by
    level where both would read the same.
    """
    texts = own.chosen, own.runner_up or ""
    name = own.subject.partition(" (+")[0]
    if plan is None or name not in plan.layout or own.runner_up is None:
        return texts
    unit = next(unit for unit in plan.units if unit.name == name)
    layouts = [Layout.parse(text) for text in texts]
    chosen, other = (describe_layout(plan, unit, layout) for layout in layouts)
    if chosen == other:
        chosen, other = (by_level([layout], plan.cluster) for layout in layouts)
    # Within a level only the order of the factors differs.
    return texts if chosen == other else (chosen, other)


def decision_note(own: Decision) -> str:
    """What is known of a runner-up: by a search that was told it, or with everything else kept."""
    if own.searched is None:
        return f"{own.note}; {own.found}" if own.found else own.note
    kept = "" if own.step is None else f"; all else kept: {format_seconds(own.step)}"
    return "; ".join(filter(None, (f"searched: {own.fix}", own.found))) + kept


def describe_decisions(decisions: Sequence[Decision], most: int) -> str:
    """What the table of decisions shows, and what not."""
    if any(own.searched is not None for own in decisions):
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
