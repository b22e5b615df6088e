"""Terminal tables of `validate`: measured against predicted times, and errors. Enters: comparisons.
Leaves: tables.

Apart from the other tables, so that those do not load what is validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from meshwright.base.quantities import (
    format_bandwidth,
    format_gibibytes,
    format_seconds,
)
from meshwright.report.terminal_tables import new_table
from meshwright.report.words import describe_program
from meshwright.sharding.placement import format_matrix
from meshwright.validate.bed_summary import BedSummary
from meshwright.validate.collectives import SMALL, AllReduceErrors
from meshwright.validate.device import StepComparison
from meshwright.validate.operator_prices import OperatorErrors
from meshwright.validate.p2 import P2Comparison
from meshwright.validate.p2_accuracy import Summary


def table_of_comparisons(comparisons: Sequence[P2Comparison]) -> Table:
    """Every measured time beside its prediction."""
    table = new_table(
        "system",
        "matrix",
        "reduce",
        "algorithm",
        "kind",
        "measured>",
        "predicted>",
        "error>",
        "program~",
    )
    for it in comparisons:
        row = it.row
        table.add_row(
            row.system,
            format_matrix(row.matrix),
            " ".join(map(str, row.reduce_axes)),
            it.algorithm,
            it.kind,
            f"{it.measured_s:.2f} s",
            f"{it.predicted_s:.2f} s",
            f"{it.error:+.1%}",
            describe_program(it.program),
        )
    return table


def table_of_realigned(comparisons: Sequence[P2Comparison]) -> Table:
    """Optima that the paper measured with levels in axis order, and what hardware order brings."""
    table = new_table(
        "system",
        "matrix",
        "algorithm",
        "measured in axis order>",
        "predicted in axis order>",
        "predicted in hardware order>",
        "program in hardware order~",
    )
    for it in comparisons:
        row = it.row
        table.add_row(
            row.system,
            format_matrix(row.matrix),
            it.algorithm,
            f"{it.measured_s:.2f} s",
            f"{it.axis_order_s:.2f} s",
            f"{it.predicted_s:.2f} s",
            describe_program(it.program),
        )
    return table


def table_of_operator_errors(errors: Mapping[str, OperatorErrors]) -> Table:
    """How far predicted operators are from measured ones, the most frequent kinds first."""
    table = new_table("operator", "passes>", "median error>", "90th percentile>")
    for kind, stats in sorted(errors.items(), key=lambda item: -item[1].passes):
        table.add_row(kind, str(stats.passes), f"{stats.median:.1%}", f"{stats.ninetieth:.1%}")
    return table


def table_of_steps_measured(comparisons: Sequence[StepComparison]) -> Table:
    """Measured training steps beside their predictions."""
    table = new_table(
        "model", "batch>", "optimizer", "measured>", "spread>", "predicted>", "error>"
    )
    for column in ("peak measured", "peak predicted", "error"):
        table.add_column(column, justify="right")
    table.add_column("paced by")
    for it in comparisons:
        measured = it.row.measured
        spread = (max(measured.samples) - min(measured.samples)) / measured.seconds
        table.add_row(
            it.row.workload,
            str(it.row.batch),
            it.row.optimizer,
            format_seconds(measured.seconds),
            f"{spread:.0%}",
            format_seconds(it.predicted_s),
            f"{it.time_error:+.1%}",
            format_gibibytes(measured.peak),
            format_gibibytes(it.predicted_bytes),
            f"{it.memory_error:+.1%}",
            "host" if it.launching else "device",
        )
    return table


def table_of_collectives(groups: Sequence[AllReduceErrors]) -> Table:
    """How far predicted AllReduces are from measured ones, by machine and group size."""
    small = f"up to {format_gibibytes(SMALL)}>"
    table = new_table("machine", "ranks>", "rows>", "mean error>", small, "worst>", "most bytes>")
    for group in groups:
        few = "" if group.small is None else f"{group.small:.1%}"
        errors = (f"{group.mean:.1%}", few, f"{group.worst:.1%}", f"{group.largest:+.1%}")
        table.add_row(group.gpu, str(group.ranks), str(group.rows), *errors)
    return table


def table_of_errors(summary: Summary | BedSummary) -> Table:
    """How far predictions are from measurements."""
    table = new_table("times", "count>", "median error>", "worst error>")
    for name, errors in summary.errors.items():
        table.add_row(name, str(errors.times), f"{errors.median:.1%}", f"{errors.worst:.1%}")
    return table


def table_of_gains(summary: Summary | BedSummary) -> Table:
    """The paper's terms and stricter ones, measured beside predicted."""
    table = new_table("in the paper's terms and in stricter ones", "measured>", "predicted>")
    both = (summary.measured, summary.predicted)

    def add(words: str, cells: Sequence[str]) -> None:
        table.add_row(words, *cells)

    add("cases", [str(g.cases) for g in both])
    add("cases improved by a program, any gain (paper)", [f"{g.improved:.1%}" for g in both])
    add("cases improved by more than 5 %", [f"{g.improved_by_5_percent:.1%}" for g in both])
    add("mean speed-up over improved cases (paper)", [_x(g.mean_speedup_of_improved) for g in both])
    add("mean speed-up over all cases", [_x(g.mean_speedup) for g in both])
    add("largest speed-up", [_x(g.largest_speedup) for g in both])
    add("largest ratio between placements", [_x(g.largest_placement_ratio) for g in both])
    return table


def table_of_fits(summary: Summary) -> Table:
    """The fitted constants, and what the rows say about them."""
    table = new_table("cluster", "link", "bandwidth used>", "implied by rows>", "rows>")
    for fit in summary.fits:
        used, implied = format_bandwidth(fit.used), format_bandwidth(fit.implied)
        table.add_row(fit.cluster, fit.link, used, implied, str(fit.rows))
    return table


def _x(ratio: float) -> str:
    return f"{ratio:.4g}x"
