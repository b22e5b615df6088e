"""What-if table: the best plan found for each change of batch, machine or limit. Enters: an
`Explained` with what was planned anew. Leaves: what the verb `explain` shows of it; every figure in
it is predicted.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table

from meshwright.base.quantities import format_gibibytes, format_rate, format_seconds
from meshwright.explain.explanation import Explained
from meshwright.explain.replan import Replanned
from meshwright.report.documents import Document
from meshwright.report.outline import short_description
from meshwright.report.terminal_tables import new_table
from meshwright.report.text.planned import missing
from meshwright.report.throughput_text import rate, unit_of
from meshwright.search.candidate import Candidate
from meshwright.simulate.throughput import throughput

NOW = "as planned"


class WhatIf(NamedTuple):
    """A line of the table: texts."""

    change: str
    step: str
    rate: str
    gain: str
    """Of tokens or samples a second."""
    memory: str
    plan: str


def what_ifs(best: Candidate, replanned: tuple[Replanned, ...]) -> list[WhatIf]:
    """A line for the plan itself, then one for each change."""
    before = rate(throughput(*best))
    memory = format_gibibytes(best.prediction.memory.total)
    lines = [
        WhatIf(
            NOW,
            format_seconds(best.prediction.step),
            format_rate(before),
            "",
            memory,
            str(short_description(best.plan)),
        )
    ]
    for alternative in replanned:
        if alternative.planned is None:
            lines.append(WhatIf(alternative.change, "", "", "", "", alternative.note))
            continue
        other = alternative.planned.best
        done, lacks = rate(throughput(*other)), missing(alternative.planned, other)
        held = format_gibibytes(other.prediction.memory.total)
        lines.append(
            WhatIf(
                alternative.change,
                format_seconds(other.prediction.step),
                format_rate(done),
                f"{done / before - 1:+.1%}",
                f"{held}, over {format_gibibytes(lacks)}" if lacks else held,
                str(short_description(other.plan, alternative.planned.rewrites)),
            )
        )
    return lines


def table_of_what_ifs(explained: Explained) -> Table:
    """The best plan for each change, as a search found it."""
    best = explained.planned.best
    unit = unit_of(throughput(*best).workload)
    table = new_table("what if~", "step>", f"{unit}/s>", "gain>", "peak memory>", "plan~")
    for line in what_ifs(best, explained.what_ifs):
        table.add_row(*line)
    return table


def describe_what_ifs() -> str:
    """What the table shows."""
    return (
        "Each planned anew by a search of the budget given (--budget); a longer one may do better."
    )


def what_ifs_document(explained: Explained) -> list[Document]:
    """The same for scripts."""
    return [
        {
            "change": it.change,
            "step_s": None if it.planned is None else it.planned.best.prediction.step,
            "samples_per_s": None
            if it.planned is None
            else throughput(*it.planned.best).samples_per_s,
            "memory_bytes": None if it.planned is None else it.planned.best.prediction.memory.total,
            "fits": it.planned is not None and not missing(it.planned, it.planned.best),
            "plan": "" if it.planned is None else str(short_description(it.planned.plan)),
            "note": it.note,
        }
        for it in explained.what_ifs
    ]
