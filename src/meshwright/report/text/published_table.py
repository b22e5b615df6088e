"""Terminal report and JSON of `validate published`: errors against published steps. Enters: judged
rows and their summary. Leaves: tables, sentences and a JSON document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.validate.published.accuracy import PublishedErrors, PublishedSummary
from meshwright.validate.published.predicted_rows import JudgedRow


def table_of_published_errors(named: str, errors: Mapping[str, PublishedErrors]) -> Table:
    """Errors of groups of rows."""
    table = new_table(named, "rows>", "median error>", "90th percentile>", "signed median>")
    for name, stats in errors.items():
        table.add_row(
            name,
            str(stats.rows),
            f"{stats.median:.1%}",
            f"{stats.ninetieth:.1%}",
            f"{stats.signed:+.1%}",
        )
    return table


def table_of_skipped(summary: PublishedSummary) -> Table:
    """Why rows have no prediction."""
    table = new_table("not predicted~", "rows>")
    for reason, count in summary.skipped.items():
        table.add_row(reason, str(count))
    return table


def describe_published(summary: PublishedSummary) -> str:
    """Order, fits and memory in sentences."""
    lines = [
        f"{summary.predicted} of {summary.rows} rows have a predicted and a measured time.",
        f"Order: right in {_share(summary.pairs_right, summary.pairs)} of rows of one source that "
        "differ in degrees only and by more than 10 %.",
        f"Fits or not: right in {_share(summary.fits_right, summary.fits)} of rows with measured "
        "memory or an out-of-memory.",
    ]
    if summary.memory is not None:
        memory = summary.memory
        lines.append(
            f"Peak memory of {memory.rows} rows: median error {memory.median:.1%}, 90th percentile "
            f"{memory.ninetieth:.1%}, signed median {memory.signed:+.1%}."
        )
    return "\n".join(lines)


def _share(right: int, of: int) -> str:
    return f"{right} of {of} ({right / of:.1%})" if of else "none, as there are none,"


def published_document(judged: Sequence[JudgedRow], summary: PublishedSummary) -> Document:
    """`validate published --json`."""
    rows = [
        {
            "source": it.row.source,
            "model": it.row.model,
            "gpu": it.row.gpu,
            "gpus": it.row.gpus,
            "config": it.config,
            "predicted_s": it.predicted_s,
            "measured_s": it.row.measured_s,
            "predicted_bytes": it.predicted_bytes,
            "measured_bytes": it.row.measured_bytes,
            "fits": it.fits,
            "failed": it.row.failed,
            "assumed": list(it.assumed),
            "skipped": it.skipped,
        }
        for it in judged
    ]
    return {"rows": rows, "summary": msgspec.to_builtins(summary)}
