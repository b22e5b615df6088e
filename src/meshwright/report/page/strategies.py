"""What the plan was chosen among. Enters: `PlanResult`, decisions. Leaves: tables of the strategies
and of the decisions with their runner-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.units import counted, format_gibibytes, format_rate, format_seconds
from meshwright.explain.decisions import Decision
from meshwright.explain.replan import Replanned
from meshwright.explain.what_if import Improvement
from meshwright.report.decisions import HEADS, decision_cells, describe_decisions
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.report.planned import FOUND, missing, speedup
from meshwright.report.predictions import describe_refused, exposed
from meshwright.report.throughput import mfu_cell, rate, unit_of
from meshwright.report.what_ifs import what_ifs
from meshwright.search.candidate import Candidate
from meshwright.search.joint.question import PlanResult
from meshwright.simulate.throughput import throughput

STRATEGIES = (
    "strategy",
    "step (bar: speed)",
    "speed-up>",
    "per device/s>",
    "MFU>",
    "micro-batches>",
    "computes>",
    "waits or moves>",
    "moved>",
    "memory>",
    "fits",
)

SHOWN = 6
"""Decisions that are not folded."""


def strategies_section(planned: PlanResult) -> Markup:
    """Baselines and the plan, with a bar for how long each takes."""
    named = [*planned.baselines, (FOUND, planned.best)]
    least = min(own.prediction.step for _, own in named)
    rows = [_strategy(planned, name, own, least) for name, own in named]
    told = describe_refused(planned.refused) if planned.refused else ""
    return joined(
        [
            table(
                STRATEGIES,
                rows,
                "Strategies, predicted; speed-ups are against the fastest baseline that fits",
                chosen=len(rows) - 1,
            ),
            joined(element("p", line, class_="note") for line in told.splitlines()),
        ]
    )


def _strategy(planned: PlanResult, name: str, own: Candidate, least: float) -> tuple[str, ...]:
    found, ratio = own.prediction, speedup(planned, own)
    lacking, done = missing(planned, own), throughput(*own)
    return (
        name,
        bar(least / found.step, format_seconds(found.step)),
        "" if ratio is None else f"{ratio:.2f}x",
        format_rate(rate(done) / done.devices),
        mfu_cell(done),
        str(own.plan.options.micro_batches),
        format_seconds(found.compute),
        format_seconds(exposed(found)),
        format_gibibytes(found.moved),
        format_gibibytes(found.memory.total),
        f"no, over {format_gibibytes(lacking)}" if lacking else "yes",
    )


def decisions_section(planned: PlanResult, decisions: Sequence[Decision]) -> Markup:
    """What was chosen, and what the best other choice would have cost; the largest are shown, the
    others folded.
    """
    if not decisions:
        return element("p", "Nobody asked for the runner-ups of the decisions.")
    told = describe_decisions(decisions, len(decisions))
    first, rest = decisions[:SHOWN], decisions[SHOWN:]
    parts = [element("p", told), _decisions(planned, first, "The largest decisions, predicted")]
    if rest:
        name = counted(len(rest), "more decision")
        folded = _decisions(planned, rest, "The other decisions, predicted")
        parts.append(element("details", element("summary", name), folded))
    return joined(parts)


def _decisions(planned: PlanResult, decisions: Sequence[Decision], caption: str) -> Markup:
    plan, prediction = planned.best
    rows = [decision_cells(own, prediction.step, plan) for own in decisions]
    return table(HEADS, rows, caption)


def helps_section(
    planned: PlanResult, helps: Sequence[Improvement], replanned: tuple[Replanned, ...]
) -> Markup:
    """What would help: the same layouts with a change, and other questions planned anew."""
    if not helps and not replanned:
        return element("p", "Nobody asked what would help.")
    parts: list[Markup] = []
    if replanned:
        unit = unit_of(throughput(*planned.best).workload)
        heads = ("what if~", "step>", f"{unit}/s>", "gain>", "peak memory>", "plan~")
        rows = what_ifs(planned.best, replanned)
        parts.append(table(heads, rows, "What if: planned anew, predicted", chosen=0))
    if helps:
        columns = ("change~", "step with it>", "samples a second>", "note~")
        lines = [
            (
                own.change,
                "" if own.step is None else format_seconds(own.step),
                "" if own.step is None else f"{own.gain:+.1%}",
                own.note,
            )
            for own in helps
        ]
        parts.append(table(columns, lines, "The same layouts with a change, predicted"))
    return joined(parts)
