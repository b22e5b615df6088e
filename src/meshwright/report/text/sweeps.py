"""Sweeps: a table, CSV and JSON. Enters: jobs with rows or what went wrong. Leaves: what the verb
`sweep` shows; every time but that of the search is predicted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec
from rich.table import Table

from meshwright.base.quantities import format_gibibytes, format_seconds
from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.search.jobs import Job, JobRow
from meshwright.search.sweep import Failed, Stopped

Outcome = tuple[Job, JobRow | Failed]

STOPPED: dict[Stopped, str] = {
    "interrupted": "interrupted",
    "lost": "a worker process has ended before its work was done, most likely for want of memory",
}


def table_of_sweep(outcomes: Sequence[Outcome]) -> Table:
    """A line for each job that was finished."""
    table = new_table(
        "model~", "cluster~", "batch>", "devices>", "step>", "gap>", "memory>", "micro>", "ZeRO>",
        "again", "rewrites>", "search>",
    )  # fmt: skip
    for job, row in outcomes:
        if isinstance(row, JobRow):
            batch = "" if job.batch is None else str(job.batch)
            table.add_row(
                job.model, job.cluster, batch, str(row.devices), format_seconds(row.step_s),
                f"{row.gap:.1%}", format_gibibytes(row.memory_bytes), str(row.micro_batches),
                str(row.zero), "yes" if row.recompute else "no", str(row.rewrites),
                format_seconds(row.search_s),
            )  # fmt: skip
    return table


def describe_failures(outcomes: Sequence[Outcome]) -> str:
    """A sentence for each job that went wrong."""
    return "\n".join(
        f"{failure.task}: {failure.sentence}"
        for _, failure in outcomes
        if isinstance(failure, Failed)
    )


def describe_rest(finished: int, jobs: int, stopped: Stopped, results: str | None) -> str:
    """Why jobs are missing, and how to go on."""
    remedy = (
        f"the same command goes on from {results}"
        if results is not None
        else "with --results FILE the same command would go on from here"
    )
    return f"{STOPPED[stopped]}: {finished} of {jobs} jobs are finished; {remedy}."


def document_of_sweep(outcomes: Sequence[Outcome], jobs: int, stopped: Stopped) -> Document:
    """All of it for scripts."""
    return {
        "stopped": stopped,
        "jobs": jobs,
        "rows": [_flat(job, outcome) for job, outcome in outcomes],
    }


def csv_of_sweep(outcomes: Sequence[Outcome]) -> str:
    """The same as lines of values, with a header."""
    names = ["model", "cluster", "batch", *JobRow.__struct_fields__, "error"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(job, outcome) for job, outcome in outcomes)
    return text.getvalue()


def _flat(job: Job, outcome: JobRow | Failed) -> Document:
    row = (
        {"error": outcome.sentence} if isinstance(outcome, Failed) else msgspec.to_builtins(outcome)
    )
    return {"model": job.model, "cluster": job.cluster, "batch": job.batch, **row}
