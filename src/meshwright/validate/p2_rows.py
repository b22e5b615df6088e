"""The table of P², Appendix A. Enters: a CSV file with its columns. Leaves: checked rows, or a
sentence that names the file, the line, the column and what was expected there.
"""

from __future__ import annotations

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.quantities import Seconds
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Matrix, Placement, parse_matrix
from meshwright.validate.csv_table import (
    Cells,
    embedded_table,
    parse_table,
    positive,
    read_table,
    whole,
)

CLUSTERS = {"A100": "gcp-a100", "V100": "gcp-v100"}
"""The cluster of the catalogue for each value of the `gpu` column."""

TIMES = tuple(f"{kind}_{way}_s" for kind in ("allreduce", "optimal") for way in ("ring", "tree"))
COLUMNS = ("gpu", "nodes", "gpus_per_node", "axes", "reduce_axes", "matrix", *TIMES)


class P2Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: a placement, what is reduced, and the measured seconds."""

    gpu: str
    nodes: int
    gpus_per_node: int
    axes: tuple[int, ...]
    reduce_axes: tuple[int, ...]
    matrix: Matrix
    measured: dict[str, Seconds]
    """By column of `TIMES`, where the table has a value."""

    @property
    def system(self) -> str:
        """The machine in words, as "4 x 16 A100"."""
        return f"{self.nodes} x {self.gpus_per_node} {self.gpu}"

    @property
    def placement(self) -> Placement:
        """The placement, its axes named by their position."""
        return Placement(tuple(Axis(str(i), n) for i, n in enumerate(self.axes)), self.matrix)

    @property
    def across_nodes(self) -> bool:
        """Whether devices of different nodes reduce together."""
        return any(self.matrix[i][0] > 1 for i in self.reduce_axes)


def embedded_rows() -> list[P2Row]:
    """The A100 rows of Appendix A that ship with Meshwright.

    >>> len(embedded_rows())
    62
    """
    name = "p2_a100.csv"
    return list(parse_table(embedded_table(name), name, COLUMNS, _row))


def load_rows(path: str) -> list[P2Row]:
    """The rows of a file with the same columns."""
    rows = list(parse_table(read_table(path, COLUMNS), path, COLUMNS, _row))
    if not rows:
        raise InputError(f"{path!r} has no rows", f"give some under {', '.join(COLUMNS)}")
    return rows


def _row(cells: Cells) -> P2Row:
    if cells["gpu"] not in CLUSTERS:
        raise InputError(f"gpu is {shown(cells['gpu'])}", nearest(cells["gpu"], CLUSTERS))
    row = P2Row(
        gpu=cells["gpu"],
        nodes=whole(cells, "nodes"),
        gpus_per_node=whole(cells, "gpus_per_node"),
        axes=_wholes(cells, "axes"),
        reduce_axes=_wholes(cells, "reduce_axes"),
        matrix=parse_matrix(cells["matrix"]),
        measured={
            column: Seconds(positive(cells, column, "seconds")) for column in TIMES if cells[column]
        },
    )
    hierarchy = row.placement.hierarchy
    if hierarchy != (row.nodes, row.gpus_per_node):
        raise InputError(
            f"matrix {row.placement} lies on {list(hierarchy)}",
            f"make its columns multiply to {[row.nodes, row.gpus_per_node]}",
        )
    if any(axis >= len(row.axes) for axis in row.reduce_axes):
        raise InputError(
            f"reduce_axes is {shown(cells['reduce_axes'])}",
            f"name axes from 0 to {len(row.axes) - 1}",
        )
    return row


def _wholes(cells: Cells, column: str) -> tuple[int, ...]:
    words = cells[column].split()
    if not words:
        raise InputError(f"{column} is empty", "give whole numbers, as '4 16'")
    return tuple(whole({column: word}, column) for word in words)
