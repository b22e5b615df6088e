"""What the plan was chosen among. Enters: `Planned`, decisions. Leaves: tables of the strategies
and of the decisions with their runner-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.units import format_gibibytes, format_seconds, format_traffic
from meshwright.explain.decisions import Decision
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.report.planned import FOUND, missing, speedup
from meshwright.report.predictions import describe_refused, exposed
from meshwright.report.throughput import format_rate, mfu_cell, rate
from meshwright.search.candidate import Candidate
from meshwright.search.joint.question import Planned
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


def strategies_section(planned: Planned) -> Markup:
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


def _strategy(planned: Planned, name: str, own: Candidate, least: float) -> tuple[str, ...]:
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
        format_traffic(found.moved),
        format_gibibytes(found.memory.total),
        f"no, over {format_gibibytes(lacking)}" if lacking else "yes",
    )


def decisions_section(planned: Planned, decisions: Sequence[Decision]) -> Markup:
    """What was chosen, and what the best other choice would have cost."""
    if not decisions:
        return element("p", "Nobody asked for the runner-ups of the decisions.")
    step = planned.best.prediction.step
    rows = [
        (
            own.subject,
            own.chosen,
            own.runner_up or "—",
            "" if own.step is None else format_seconds(own.step),
            "" if own.step is None else f"{own.step / step - 1:+.1%}",
            own.note,
        )
        for own in decisions
    ]
    heads = ("decision~", "chosen~", "runner-up~", "step with it>", "longer>", "note~")
    caption = "Each decision beside the best other one, with everything else kept; predicted"
    return table(heads, rows, caption)
