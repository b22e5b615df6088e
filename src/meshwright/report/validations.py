"""What the verb `validate` shows in the terminal. Enters: comparisons. Leaves: tables, a sentence.

Apart from the other tables, so that those do not load what is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from meshwright.base.units import (
    format_bandwidth,
    format_gibibytes,
    format_seconds,
)
from meshwright.cost.protocol import Constants
from meshwright.report.tables import new_table
from meshwright.report.words import describe_program
from meshwright.sharding.placement import format_matrix
from meshwright.validate.bed_summary import BedSummary
from meshwright.validate.collectives import CollectiveSummary
from meshwright.validate.device import StepComparison
from meshwright.validate.operators import OperatorErrors
from meshwright.validate.p2 import P2Comparison
from meshwright.validate.step_constants import KNOWN, StepConstants
from meshwright.validate.step_summary import MeanError, RankCorrelation, StepSummary
from meshwright.validate.summary import Summary


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
    for kind, own in sorted(errors.items(), key=lambda item: -item[1].passes):
        table.add_row(kind, str(own.passes), f"{own.median:.1%}", f"{own.ninetieth:.1%}")
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
        own = it.row.measured
        spread = (max(own.samples) - min(own.samples)) / own.seconds
        table.add_row(
            it.row.workload,
            str(it.row.batch),
            it.row.optimizer,
            format_seconds(own.seconds),
            f"{spread:.0%}",
            format_seconds(it.predicted_s),
            f"{it.time_error:+.1%}",
            format_gibibytes(own.peak),
            format_gibibytes(it.predicted_bytes),
            f"{it.memory_error:+.1%}",
            "host" if it.launching else "device",
        )
    return table


def table_of_collectives(summary: CollectiveSummary) -> Table:
    """How far predicted AllReduces are from measured ones, by machine and group size."""
    table = new_table("machine", "ranks>", "rows>", "mean error>", "worst error>")
    seen = all(group.evidence for group in summary.groups)
    if seen:
        table.add_column("other half", justify="right")
        table.add_column("size left out", justify="right")
    for own in summary.groups:
        errors = [own.mean_error, own.worst_error]
        if own.evidence:
            errors += [own.evidence.other_half, own.evidence.size_left_out]
        cells = (f"{error:.2%}" for error in errors)
        table.add_row(own.gpu, str(own.ranks), str(own.rows), *cells)
    table.add_section()
    for name, error in summary.mean_error_of_machine.items():
        rows = sum(own.rows for own in summary.groups if own.gpu == name)
        table.add_row(name, "all", str(rows), f"{error:.2%}")
    table.add_row(
        "all", "all", str(sum(g.rows for g in summary.groups)), f"{summary.mean_error:.2%}"
    )
    return table


def table_of_protocol_constants(summary: CollectiveSummary) -> Table:
    """What was fitted for each machine."""
    table = new_table("fitted constant", *(f"{name}>" for name in summary.constants))
    lines: tuple[tuple[str, Callable[[Constants], str]], ...] = (
        ("launch, Simple", lambda own: format_seconds(own.launch)),
        ("hop, Simple", lambda own: format_seconds(own.hop)),
        ("share of a begun granule that is waited for", lambda own: f"{own.granule_share:.1%}"),
        ("first bytes over a port take longer by", lambda own: f"{own.ramp:.1%}"),
        ("those first bytes", lambda own: format_gibibytes(own.ramp_bytes)),
        ("launch, LL128", lambda own: format_seconds(own.ll128_launch)),
        ("hop, LL128", lambda own: format_seconds(own.ll128_hop)),
        ("least chunk, LL128", lambda own: format_gibibytes(own.ll128_least)),
        ("rate of a channel, LL128", lambda own: format_bandwidth(own.ll128_rate)),
    )
    for words, text in lines:
        table.add_row(words, *map(text, summary.constants.values()))
    return table


def table_of_step_errors(summary: StepSummary) -> Table:
    """How far predicted training steps are from the given ones, fitted rows apart from others."""
    table = new_table("mean error", "inside a node>", "rows>", "across nodes>", "rows>")
    lines: tuple[tuple[str, MeanError], ...] = (
        (f"fitted (half drawn by seed {summary.seed})", summary.fitted),
        ("held out", summary.held_out),
        ("all", summary.mean_error),
    )
    for words, own in lines:
        inside, across = _share(own.inside_node), _share(own.across_nodes)
        counts = str(own.rows_inside_node), str(own.rows_across_nodes)
        table.add_row(words, inside, counts[0], across, counts[1])
    return table


def table_of_rank_correlations(summary: StepSummary) -> Table:
    """How well predictions keep the order of configurations."""
    table = new_table("rank correlation among rows of", "groups>", "median>", "mean>", "least>")
    lines: tuple[tuple[str, RankCorrelation], ...] = (
        ("one model, machine, global batch", summary.rank_one_batch),
        ("one model, machine", summary.rank_all_batches),
    )
    for words, own in lines:
        found = (own.median, own.mean, own.least)
        cells = ("" if value is None else f"{value:.3f}" for value in found)
        table.add_row(words, str(own.groups), *cells)
    return table


def table_of_step_constants(summary: StepSummary) -> Table:
    """Every fitted constant beside what was expected before."""
    table = new_table("fitted constant", "fitted>", "expected>", "plausible>", "meaning")
    before = StepConstants()
    for name, known in KNOWN.items():
        values = getattr(summary.constants, name), getattr(before, name), known.low, known.high
        fitted, expected, low, high = (_constant(value, known.unit) for value in values)
        table.add_row(name, fitted, expected, f"{low} to {high}", known.meaning)
    return table


def _constant(value: float, unit: str) -> str:
    match unit:
        case "s":
            return format_seconds(value)
        case "B/s":
            return format_bandwidth(value)
        case _:
            return f"{value:.3g} {unit}".rstrip()


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


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


def describe_straightness(summary: StepSummary) -> str:
    """What the given times are, as far as they tell it themselves."""
    sentences = []
    for where, own in (
        ("inside a node", summary.inside_node),
        ("across nodes", summary.across_nodes),
    ):
        if not own.triples:
            sentences.append(f"No three rows {where} differ only in micro-batches.")
            continue
        sentences.append(
            f"{own.exact} of {own.triples} triples of rows {where} that differ only in "
            "micro-batches lie on a straight line to 1 ns."
        )
        if own.exact == own.triples:
            sentences.append(
                "Separate runs do not: these times look summed by a simulator, not measured, and "
                "the errors are errors against it."
            )
    return " ".join(sentences)


def _x(ratio: float) -> str:
    return f"{ratio:.4g}x"
