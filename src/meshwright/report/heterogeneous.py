"""AMP's trials beside their predictions: a table and a sentence. Enters: judged rows. Leaves: what
`validate heterogeneous` shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.report.documents import Document
from meshwright.report.tables import new_table
from meshwright.validate.heterogeneous import HetJudged, median_error, pairs_in_order


def table_of_trials(found: Sequence[HetJudged]) -> Table:
    """A line for each row that has a prediction."""
    table = new_table(
        "experiment", "units of stages~", "TP>", "DP>", "micro-batch>", "measured>", "predicted>",
        "error>", "AMP's>",
    )  # fmt: skip
    for own in found:
        row = own.row
        if own.error is None or own.predicted is None or row.measured is None:
            continue
        table.add_row(
            row.experiment,
            " ".join(map(str, row.stages)),
            str(row.tensor),
            str(row.data),
            str(row.micro_batch),
            f"{row.measured:.2f} s",
            f"{own.predicted:.2f} s",
            f"{own.predicted / row.measured - 1:+.0%}",
            f"{row.by_source / row.measured - 1:+.0%}",
        )
    return table


def describe_trials(found: Sequence[HetJudged]) -> str:
    """Errors and order, for each experiment and in all."""
    lines = []
    for name in (*dict.fromkeys(own.row.experiment for own in found), ""):
        rows = [own for own in found if name in ("", own.row.experiment)]
        known = [own for own in rows if own.error is not None]
        if not known:
            lines.append(f"{name}: {len(rows)} rows, none predicted ({rows[0].skipped}).")
            continue
        lines.append(
            f"{name or 'all'}: {len(known)} of {len(rows)} measured rows predicted, median error "
            f"{median_error(rows):.1%} (AMP's own {_by_source(known):.1%}), "
            f"{pairs_in_order(rows):.0%} of pairs in order."
        )
    return "\n".join(lines)


def _by_source(known: Sequence[HetJudged]) -> float:
    errors = sorted(
        abs(own.row.by_source / own.row.measured - 1) for own in known if own.row.measured
    )
    return errors[len(errors) // 2]


def heterogeneous_document(found: Sequence[HetJudged]) -> Document:
    """What a script gets."""
    return {
        "median_error": median_error(found),
        "pairs_in_order": pairs_in_order(found),
        "rows": [
            {
                "experiment": own.row.experiment,
                "stages": list(own.row.stages),
                "tp": own.row.tensor,
                "dp": own.row.data,
                "micro_batch": own.row.micro_batch,
                "measured_s": own.row.measured,
                "predicted_s": own.predicted,
                "by_source_s": own.row.by_source,
                "skipped": own.skipped,
            }
            for own in found
        ],
    }
