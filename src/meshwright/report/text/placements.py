"""Placements and reduction programs as tables. Enters: rankings. Leaves: rich tables; every time in
them is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from meshwright.base.quantities import format_bandwidth, format_bytes, format_seconds
from meshwright.collectives.predict import PricedProgram
from meshwright.report.terminal_tables import new_table
from meshwright.report.words import describe_program
from meshwright.search.rank import RankedPlacement, Reduction
from meshwright.sharding.placement import Placement


def table_of_placements(ranking: Sequence[RankedPlacement], most: int) -> Table:
    """Placements by predicted time, with a line for each reduction if there are several."""
    several = len(ranking[0].reductions) > 1
    columns = ["#>", "matrix", "best program~", "predicted>", "AllReduce>", "speed-up>"]
    if several:
        columns.insert(2, "reduction~")
    else:
        columns.append("bandwidth>")
    table = new_table(*columns)
    for number, ranked in enumerate(ranking[:most], start=1):
        for index, price in enumerate(ranked.reductions):
            first = index == 0
            rate = price.reduction.bytes / price.best.seconds if price.best.seconds else math.inf
            table.add_row(
                str(number) if first else "",
                str(ranked.placement) if first else "",
                *([str(price.reduction)] if several else []),
                describe_program(price.best.program),
                *_gain(price.best_seconds, price.all_reduce_seconds),
                *([] if several else [format_bandwidth(rate)]),
            )
        if several:
            cells = _gain(ranked.best_seconds, ranked.all_reduce_seconds)
            table.add_row("", "", "total", "", *cells, end_section=True, style="bold")
    return table


def _gain(best: float, single: float) -> tuple[str, str, str]:
    speedup = f"{single / best:.2f}x" if best else ""
    return format_seconds(best), format_seconds(single), speedup


def table_of_pairs(pairs: Sequence[tuple[Placement, PricedProgram]], most: int) -> Table:
    """Placements and programs ranked together, by predicted time."""
    table = new_table("#>", "matrix", "program~", "predicted>")
    for number, (placement, priced) in enumerate(pairs[:most], start=1):
        time = format_seconds(priced.seconds)
        table.add_row(str(number), str(placement), describe_program(priced.program), time)
    return table


def table_of_programs(programs: Sequence[PricedProgram], most: int) -> Table:
    """The programs of one placement, by predicted time."""
    table = new_table("#>", "program~", "steps>", "predicted>", "paced by")
    for number, priced in enumerate(programs[:most], start=1):
        slowest = max(priced.steps, key=lambda step: step.seconds)
        steps, time = str(len(priced.program)), format_seconds(priced.seconds)
        words = describe_program(priced.program)
        table.add_row(str(number), words, steps, time, slowest.link)
    return table


def table_of_steps(priced: PricedProgram) -> Table:
    """One program, step by step."""
    table = new_table("step>", "instruction", "holds before>", "predicted>", "paced by")
    for number, step in enumerate(priced.steps, start=1):
        held, time = format_bytes(round(step.held)), format_seconds(step.seconds)
        table.add_row(str(number), str(step.instruction), held, time, step.link)
    return table


def table_of_sweep(sweep: Sequence[tuple[Reduction, RankedPlacement]]) -> Table:
    """The best placement and program for each payload."""
    table = new_table(
        "payload>", "matrix", "best program~", "predicted>", "AllReduce>", "speed-up>"
    )
    for reduction, ranked in sweep:
        table.add_row(
            format_bytes(reduction.bytes),
            str(ranked.placement),
            describe_program(ranked.reductions[0].best.program),
            *_gain(ranked.best_seconds, ranked.all_reduce_seconds),
        )
    return table
