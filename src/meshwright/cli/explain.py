"""The verb `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, share_bar
from meshwright.cli.options import JsonOption, TopOption, require_lines
from meshwright.cli.plan_options import MemoryOption, chosen_memory

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.explain.explanation import Explained

SECONDS = 20.0
"""How long an explanation may take."""


def explain(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --out' wrote.")],
    memory: MemoryOption = None,
    top: TopOption = 12,
    json: JsonOption = False,
) -> None:
    """Tell why a plan is what it is: decisions, critical path, what costs, what would help.

    Ctrl-C ends it with what is known so far.

    Example:  meshwright explain plan.json --top 20
    """
    from meshwright.plan.file import load_plan

    require_lines(top)
    loaded = load_plan(plan)
    limit = chosen_memory(memory, loaded.cluster)

    from meshwright.explain.explanation import explained

    with share_bar("explaining (the first time compiles for a minute or two)") as show:
        found = explained(loaded, seconds=SECONDS, memory=limit, progress=show)
    if json:
        from meshwright.report.explained_documents import explained_document

        print_json(explained_document(found) | {"backend": loaded.backend})
    else:
        print_parts(*_parts(found, top))


def _parts(found: Explained, top: int) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.report import explained as report
    from meshwright.report.planned import describe_decisions, table_of_decisions

    spent, step = found.spending, found.planned.best.prediction.step
    parts: list[str | Table] = [report.describe_explained(found)]
    if found.decisions:
        parts.append(table_of_decisions(found.decisions, step, top))
        told = describe_decisions(found.decisions, top)
        parts.append(f"{told} {report.describe_better(found.decisions, step)}")
    parts.append(report.table_of_stretches(spent.stretches, top))
    parts.append(report.describe_stretches(spent.stretches, top))
    parts.append(report.table_of_links(spent.links))
    parts.append(report.table_of_kinds(spent.kinds, top))
    if spent.collectives:
        parts.append(report.table_of_collectives(spent.collectives, top))
    parts.append(report.describe_costs(found, top))
    if found.helps:
        parts += [report.table_of_helps(found.helps), report.describe_helps()]
    if found.stopped in report.STOPPED:
        parts.append(report.STOPPED[found.stopped])
    return parts
