"""The verb `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.plan_options import MemoryOption, chosen_memory
from meshwright.cli.shared_options import JsonOption, TopOption, require_lines

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.explain.explanation import Explained
    from meshwright.search.budget import Budget

SECONDS = 20.0
"""How long an explanation may take, without its searches."""

SEARCHES = "3s"
"""Of each search, unless something else is said."""

SearchesOption = Annotated[
    str,
    typer.Option(
        help="Of each search (runner-ups of the largest decisions, what-ifs): a time, a number of "
        "proposals, or 0 for none."
    ),
]


def explain(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --out' wrote.")],
    memory: MemoryOption = None,
    budget: SearchesOption = SEARCHES,
    top: TopOption = 12,
    json: JsonOption = False,
) -> None:
    """Tell why a plan is what it is: decisions, critical path, what costs, what would help.

    The five largest decisions are searched again with their runner-up fixed; twice the batch, more
    nodes, other devices, longer samples and more memory are planned anew. Ctrl-C ends it with
    what is known so far.

    Example:  meshwright explain plan.json --top 20 --budget 1s
    """
    from meshwright.cli.verbs.plan_islands import explain_islands
    from meshwright.plan.file import load_plan
    from meshwright.plan.island_plan import is_island_plan

    require_lines(top)
    if is_island_plan(plan):
        explain_islands(plan, json=json)
        return
    loaded = load_plan(plan)
    limit, searches = chosen_memory(memory, loaded.cluster), chosen_searches(budget)

    from meshwright.configs.explain_plan import explained_beside_recipes

    with progress_bar("explaining (the first time compiles for a minute or two)") as show:
        explained = explained_beside_recipes(
            loaded, seconds=SECONDS, memory=limit, budget=searches, progress=show
        )
    if json:
        from meshwright.report.json.explained_documents import explained_document

        print_json(explained_document(explained) | {"backend": loaded.backend})
    else:
        print_parts(*_parts(explained, top))


def chosen_searches(text: str) -> Budget | None:
    """What each search may take; None for no search."""
    from meshwright.cli.shared_options import chosen_budget

    return None if text.strip() == "0" else chosen_budget(text)


def _parts(explained: Explained, top: int) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.report.text import explained as report
    from meshwright.report.text import what_ifs
    from meshwright.report.text.decision_table import describe_decisions, table_of_decisions

    spent, step = explained.spending, explained.planned.best.prediction.step
    parts: list[str | Table] = [report.describe_explained(explained)]
    if explained.decisions:
        parts.append(table_of_decisions(explained.decisions, step, top, explained.planned.plan))
        sentence = describe_decisions(explained.decisions, top)
        parts.append(f"{sentence} {report.describe_better(explained.decisions, step)}")
    parts.append(report.table_of_stretches(spent.stretches, top))
    parts.append(report.describe_stretches(spent.stretches, top))
    parts.append(report.table_of_links(spent.links))
    parts.append(report.table_of_kinds(spent.kinds, top))
    if spent.collectives:
        parts.append(report.table_of_collectives(spent.collectives, top))
    parts.append(report.describe_costs(explained, top))
    if explained.helps:
        parts += [report.table_of_helps(explained.helps), report.describe_helps()]
    if explained.what_ifs:
        parts += [what_ifs.table_of_what_ifs(explained), what_ifs.describe_what_ifs()]
    if explained.stopped in report.STOPPED:
        parts.append(report.STOPPED[explained.stopped])
    return parts
