"""AMP's heterogeneous experiments (NeurIPS 2022), measured against predicted: a table. Enters:
judged rows. Leaves: what `validate heterogeneous` shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.validate.heterogeneous import HetJudged, median_error, pairs_in_order


def table_of_trials(trials: Sequence[HetJudged]) -> Table:
    """A line for each row that has a prediction."""
    table = new_table(
        "experiment", "units of stages~", "TP>", "DP>", "micro-batch>", "measured>", "predicted>",
        "error>", "AMP's>",
    )  # fmt: skip
    for trial in trials:
        row = trial.row
        if trial.error is None or trial.predicted is None or row.measured is None:
            continue
        table.add_row(
            row.experiment,
            " ".join(map(str, row.stages)),
            str(row.tensor),
            str(row.data),
            str(row.micro_batch),
            f"{row.measured:.2f} s",
            f"{trial.predicted:.2f} s",
            f"{trial.predicted / row.measured - 1:+.0%}",
            f"{row.by_source / row.measured - 1:+.0%}",
        )
    return table


def describe_trials(trials: Sequence[HetJudged]) -> str:
    """Errors and order, for each experiment and in all."""
    lines = []
    for name in (*dict.fromkeys(trial.row.experiment for trial in trials), ""):
        rows = [trial for trial in trials if name in ("", trial.row.experiment)]
        known = [trial for trial in rows if trial.error is not None]
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
        abs(trial.row.by_source / trial.row.measured - 1) for trial in known if trial.row.measured
    )
    return errors[len(errors) // 2]


def heterogeneous_document(trials: Sequence[HetJudged]) -> Document:
    """What a script gets."""
    return {
        "median_error": median_error(trials),
        "pairs_in_order": pairs_in_order(trials),
        "rows": [
            {
                "experiment": trial.row.experiment,
                "stages": list(trial.row.stages),
                "tp": trial.row.tensor,
                "dp": trial.row.data,
                "micro_batch": trial.row.micro_batch,
                "measured_s": trial.row.measured,
                "predicted_s": trial.predicted,
                "by_source_s": trial.row.by_source,
                "skipped": trial.skipped,
            }
            for trial in trials
        ],
    }
