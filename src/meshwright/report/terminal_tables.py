"""Tables for the terminal: how they look, and the lists of clusters and models. Enters: clusters,
figures of models. Leaves: rich tables. It imports little, so that a list is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.table import Table

from meshwright.base.quantities import format_count, format_gibibytes
from meshwright.cluster.island_cluster import Machine, levels_text, regular_parts

if TYPE_CHECKING:
    from meshwright.cost.figures import ModelFigures


def table_of_clusters(clusters: Sequence[Machine]) -> Table:
    """The catalogue, a line each, and one more for every further island."""
    table = new_table("cluster", "levels", "devices>", "device", "description~")
    for cluster in clusters:
        name, description = cluster.name, cluster.description
        for number, part in enumerate(regular_parts(cluster)):
            levels = ("+ " if number else "") + levels_text(part)
            table.add_row(name, levels, str(part.devices), part.device.name, description)
            name = description = ""
    return table


def table_of_models(figures: Sequence[ModelFigures], batches: Mapping[str, int]) -> Table:
    """Models by what a training step of each amounts to on one device."""
    table = new_table("model", "batch>", "operators>", "parameters>", "FLOP a step>", "memory>")
    table.add_column("repeated layers")
    for one in figures:
        repeats = ", ".join(f"{repeat.count} x {repeat.period}" for repeat in one.repeats)
        table.add_row(
            one.name,
            str(batches[one.name]),
            str(one.operators),
            format_count(one.parameters),
            format_count(one.flops),
            format_gibibytes(one.memory.total),
            repeats,
        )
    return table


def new_table(*columns: str) -> Table:
    """A table; a column's name ends in > if it is aligned to the right, in ~ if it may wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        name = column.rstrip(">~")
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        wraps = column.endswith("~")
        table.add_column(name, justify=justify, no_wrap=not wraps, min_width=14 if wraps else None)
    return table
