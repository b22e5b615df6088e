"""The verb `report`, and what `plan` writes beside its plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.plan_options import PapersOption
from meshwright.cli.shared_options import JsonOption, require_output_path, require_places, set_aside
from meshwright.cli.verbs.explain import SEARCHES, SearchesOption, chosen_searches

if TYPE_CHECKING:
    from meshwright.explain.decisions import Decision
    from meshwright.explain.replan import Replanned
    from meshwright.explain.what_if import Improvement
    from meshwright.search.budget import Budget
    from meshwright.search.joint.request.question import PlanResult
    from meshwright.simulate.collective_table import CollectivePrices

DEFAULT = "report.html"
"""Where a report is written unless something else is said."""

EXPLAINING = 20.0
"""Seconds that an explanation may take, without its searches."""

ReportOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write a report, one HTML file, here.")
]
TraceOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write a trace for Perfetto or chrome://tracing."),
]


def report(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --out' wrote.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            "--save",
            metavar="FILE",
            help="Write the report here.",
            show_default=DEFAULT,
        ),
    ] = None,
    papers: PapersOption = False,
    trace: TraceOption = None,
    explain: Annotated[
        bool, typer.Option(help="Tell what the runner-up of every decision would cost.")
    ] = True,
    budget: SearchesOption = SEARCHES,
    json: JsonOption = False,
) -> None:
    """Write a report on a plan: one HTML file that opens offline, every figure predicted.

    Example:  meshwright report plan.json --out report.html --budget 0
    """
    from meshwright.plan.file import load_plan

    place, searches = chosen_place(out), chosen_searches(budget)
    require_places(out=place, trace=trace)
    loaded = load_plan(plan)

    from meshwright.configs.find_plan import beside
    from meshwright.configs.recipes import recipes
    from meshwright.cost.backend import backend_named
    from meshwright.explain.evaluate_plan import judged
    from meshwright.simulate.simulation import prices_of

    with progress_bar("simulating baselines (the first time compiles for a minute or two)"):
        planned = judged(loaded, baselines=papers)
        known = recipes(
            loaded.graph,
            loaded.cluster,
            planned.question.memory,
            training=planned.question.training,
            backend=backend_named(loaded.backend),
        )
        planned = beside(planned, known, papers=papers)
    prices = prices_of(loaded)
    reasons = explained(planned, prices, searches) if explain else NOTHING
    before = set_aside(place, trace)
    write(planned, reasons, prices, place, trace)
    if json:
        print_json({"report": place, "trace": trace})
    else:
        print_parts(f"The report is in {place}; open it in a browser.{before}")


def chosen_place(out: str | None) -> str:
    """The file of the report. What was not named by the user replaces nothing but a report."""
    from pathlib import Path

    from meshwright.base.errors import InputError
    from meshwright.report.page.page import looks_like_report

    path = out or DEFAULT
    require_output_path("--out", path)
    if out is None and Path(path).exists() and not looks_like_report(path):
        raise InputError(f"{path!r} is there already and is no report", "name a file with --out")
    return path


class Reasons(NamedTuple):
    """Why a plan, and what would be better."""

    decisions: tuple[Decision, ...] = ()
    helps: tuple[Improvement, ...] = ()
    what_ifs: tuple[Replanned, ...] = ()


NOTHING = Reasons()


def explained(planned: PlanResult, prices: CollectivePrices, searches: Budget | None) -> Reasons:
    """What the runner-up of each decision costs and what would help, with so much for each search;
    what there is if the user has no time.
    """
    import time

    from meshwright.configs.find_plan import fastest_recipe
    from meshwright.cost.backend import backend_named
    from meshwright.cost.tables import pricer_of
    from meshwright.explain.confirm import confirm_decisions
    from meshwright.explain.decisions import explain
    from meshwright.explain.replan import changes_not_replanned, replanned
    from meshwright.explain.what_if import helps

    reasons, (plan, prediction), question = NOTHING, planned.best, planned.question
    if planned.stopped == "interrupted":
        return reasons
    try:
        with progress_bar("explaining") as show:
            end = time.monotonic() + EXPLAINING
            reasons = Reasons(helps=helps(plan, question.memory, lambda: time.monotonic() > end))
            decisions = explain(
                plan,
                prices=prices,
                operators=pricer_of(question.cluster.device),
                memory=question.memory,
                deadline=end,
            )
            reasons = reasons._replace(decisions=decisions)
            if searches is None:
                return reasons
            progress = partial(show, 1.0)
            for confirming in confirm_decisions(
                plan, question, decisions, searches, step=prediction.step, progress=progress
            ):
                reasons = reasons._replace(decisions=confirming)
            known = partial(fastest_recipe, searches, backend_named(plan.backend))
            for what_if in replanned(
                plan, question, searches, progress, helps=reasons.helps, known=known
            ):
                reasons = reasons._replace(
                    what_ifs=(*reasons.what_ifs, what_if),
                    helps=changes_not_replanned(reasons.helps, [what_if]),
                )
    except KeyboardInterrupt:
        pass
    return reasons


def write(
    planned: PlanResult,
    reasons: Reasons,
    prices: CollectivePrices,
    report: str | None,
    trace: str | None,
) -> None:
    """The report and the trace of the best plan, as far as they are wanted."""
    import msgspec

    from meshwright.base.files import write_atomically
    from meshwright.report.json.trace import trace_document
    from meshwright.report.page.page import page
    from meshwright.simulate.simulation import simulate

    if report is None and trace is None:
        return
    simulation = simulate(planned.best.plan, prices)
    if report is not None:
        text = page(
            planned,
            reasons.decisions,
            simulation,
            helps=reasons.helps,
            what_ifs=reasons.what_ifs,
        )
        write_atomically(report, text.encode())
    if trace is not None:
        write_atomically(trace, msgspec.json.encode(trace_document(simulation)))
