"""The table of P², Appendix A. Enters: a CSV file with its columns. Leaves: checked rows, or a
sentence that names the file, the line, the column and what was expected there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from meshwright.foundation.errors import InputError, nearest
from meshwright.foundation.units import Seconds
from meshwright.place.axes import Axis
from meshwright.place.placement import Matrix, Placement, parse_matrix

CLUSTERS = {"A100": "gcp-a100", "V100": "gcp-v100"}
"""The cluster of the catalogue for each value of the `gpu` column."""

TIMES = tuple(f"{kind}_{way}_s" for kind in ("allreduce", "optimal") for way in ("ring", "tree"))
_N = TypeVar("_N", int, float)

COLUMNS = ("gpu", "nodes", "gpus_per_node", "axes", "reduce_axes", "matrix", *TIMES)


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
    def placement(self) -> Placement:
        """The placement, its axes named by their position."""
        return Placement(tuple(Axis(str(i), n) for i, n in enumerate(self.axes)), self.matrix)

    @property
    def across_nodes(self) -> bool:
        """Whether devices of different nodes reduce together."""
        return any(self.matrix[i][0] > 1 for i in self.reduce_axes)


def embedded_rows() -> list[Row]:
    """The A100 rows of Appendix A that ship with Meshwright.

    >>> len(embedded_rows())
    62
    """
    text = files("meshwright.validate").joinpath("data/p2_a100.csv").read_text(encoding="utf-8")
    return list(_rows(text, "p2_a100.csv"))


def load_rows(path: str) -> list[Row]:
    """The rows of a file with the same columns."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path!r} ({getattr(error, 'strerror', None) or error})",
            f"give a CSV file with the columns {', '.join(COLUMNS)}",
        ) from None
    rows = list(_rows(text, path))
    if not rows:
        raise InputError(f"{path!r} has no rows", f"give some under {', '.join(COLUMNS)}")
    return rows


def _rows(text: str, file: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{file}: there is no column {missing[0]!r}", "add it to the first line")
    for record in reader:
        try:
            yield _row({column: (record[column] or "").strip() for column in COLUMNS})
        except InputError as error:
            raise error.at(f"{file}, line {reader.line_num}") from None


def _row(cells: dict[str, str]) -> Row:
    if cells["gpu"] not in CLUSTERS:
        raise InputError(f"gpu is {cells['gpu']!r}", nearest(cells["gpu"], CLUSTERS))
    row = Row(
        gpu=cells["gpu"],
        nodes=_numbers(cells, "nodes", int)[0],
        gpus_per_node=_numbers(cells, "gpus_per_node", int)[0],
        axes=_numbers(cells, "axes", int),
        reduce_axes=_numbers(cells, "reduce_axes", int),
        matrix=parse_matrix(cells["matrix"]),
        measured={c: Seconds(_numbers(cells, c, float)[0]) for c in TIMES if cells[c]},
    )
    hierarchy = row.placement.hierarchy
    if hierarchy != (row.nodes, row.gpus_per_node):
        raise InputError(
            f"matrix {cells['matrix']} lies on {list(hierarchy)}",
            f"its columns must multiply to {[row.nodes, row.gpus_per_node]}",
        )
    if any(axis >= len(row.axes) for axis in row.reduce_axes):
        raise InputError(
            f"reduce_axes is {cells['reduce_axes']!r}", f"the axes are 0 to {len(row.axes) - 1}"
        )
    return row


def _numbers(cells: dict[str, str], column: str, kind: type[_N]) -> tuple[_N, ...]:
    try:
        numbers = tuple(kind(word) for word in cells[column].split())
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0 or (kind is float and min(numbers) <= 0):
        raise InputError(f"{column} is {cells[column]!r}", f"expected {kind.__name__} numbers")
    return numbers
