"""HTML tables of strategies, and of decisions with their runners-up. Enters: `PlanResult`,
decisions. Leaves: tables of the strategies and of the decisions with their runner-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.quantities import counted, format_gibibytes, format_rate, format_seconds
from meshwright.explain.decisions import Decision
from meshwright.explain.replan import Replanned
from meshwright.explain.what_if import Improvement
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.report.predictions import describe_refused, exposed
from meshwright.report.text.decision_table import HEADS, decision_cells, describe_decisions
from meshwright.report.text.planned import FOUND, missing, speedup
from meshwright.report.text.what_ifs import what_ifs
from meshwright.report.throughput_text import mfu_cell, rate, unit_of
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanResult
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
    least = min(candidate.prediction.step for _, candidate in named)
    rows = [_strategy(planned, name, candidate, least) for name, candidate in named]
    refused = describe_refused(planned.refused) if planned.refused else ""
    return joined(
        [
            table(
                STRATEGIES,
                rows,
                "Strategies, predicted; speed-ups are against the fastest baseline that fits",
                chosen=len(rows) - 1,
            ),
            joined(element("p", line, class_="note") for line in refused.splitlines()),
        ]
    )


def _strategy(
    planned: PlanResult, name: str, candidate: Candidate, least: float
) -> tuple[str, ...]:
    prediction, ratio = candidate.prediction, speedup(planned, candidate)
    lacking, done = missing(planned, candidate), throughput(*candidate)
    return (
        name,
        bar(least / prediction.step, format_seconds(prediction.step)),
        "" if ratio is None else f"{ratio:.2f}x",
        format_rate(rate(done) / done.devices),
        mfu_cell(done),
        str(candidate.plan.options.micro_batches),
        format_seconds(prediction.compute),
        format_seconds(exposed(prediction)),
        format_gibibytes(prediction.moved),
        format_gibibytes(prediction.memory.total),
        f"over {format_gibibytes(lacking)}" if lacking else "yes",
    )


def decisions_section(planned: PlanResult, decisions: Sequence[Decision]) -> Markup:
    """What was chosen, and what the best other choice would have cost; the largest are shown, the
    others folded.
    """
    if not decisions:
        return element("p", "Nobody asked for the runner-ups of the decisions.")
    text = describe_decisions(decisions, len(decisions))
    first, rest = decisions[:SHOWN], decisions[SHOWN:]
    parts = [element("p", text), _decisions(planned, first, "The largest decisions, predicted")]
    if rest:
        name = counted(len(rest), "more decision")
        folded = _decisions(planned, rest, "The other decisions, predicted")
        parts.append(element("details", element("summary", name), folded))
    return joined(parts)


def _decisions(planned: PlanResult, decisions: Sequence[Decision], caption: str) -> Markup:
    plan, prediction = planned.best
    rows = [decision_cells(decision, prediction.step, plan) for decision in decisions]
    return table(HEADS, rows, caption)


def improvements_section(
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
                improvement.change,
                "" if improvement.step is None else format_seconds(improvement.step),
                "" if improvement.step is None else f"{improvement.gain:+.1%}",
                improvement.note,
            )
            for improvement in helps
        ]
        parts.append(table(columns, lines, "The same layouts with a change, predicted"))
    return joined(parts)
