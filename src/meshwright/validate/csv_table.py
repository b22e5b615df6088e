"""Tables in CSV files, as validations read them. Enters: a file or its text, the columns wanted,
and what makes a row of cells. Leaves: rows, or a sentence that names file, line and column.

Other columns than those wanted are passed over.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from meshwright.base.errors import InputError, shown
from meshwright.base.integers import parse_whole

Cells = dict[str, str]
Row = TypeVar("Row")


def embedded_table(name: str) -> str:
    """The text of a table that ships with Meshwright."""
    return files("meshwright.validate").joinpath(f"data/{name}").read_text(encoding="utf-8")


def read_table(path: str, columns: Sequence[str]) -> str:
    """The text of a file that should have some columns."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path!r} ({getattr(error, 'strerror', None) or error})",
            f"give a CSV file with the columns {', '.join(columns)}",
        ) from None


def parse_table(
    text: str, file: str, columns: Sequence[str], row: Callable[[Cells], Row]
) -> Iterator[Row]:
    """The rows of a text; `file` is what it is called in sentences."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        records = [(reader.line_num, record) for record in reader]
    except csv.Error as error:
        place = f"{file}, line {reader.line_num + 1}"
        raise InputError(f"{place}: not valid CSV ({error})", "correct that line") from None
    if missing:
        raise InputError(f"{file}: there is no column {missing[0]!r}", "add it to the first line")
    for line, record in records:
        try:
            yield row({column: (record[column] or "").strip() for column in columns})
        except InputError as error:
            raise error.at(f"{file}, line {line}") from None


def whole(cells: Cells, column: str, least: int = 0) -> int:
    """A cell that must be a whole number."""
    try:
        number = parse_whole(cells[column])
    except InputError as error:
        raise error.at(column) from None
    if number < least:
        raise InputError(f"{column} is {number}", f"give {least} or more")
    return number


def positive(cells: Cells, column: str, unit: str) -> float:
    """A cell that must be a finite number above 0 of some unit."""
    try:
        value = float(cells[column])
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise InputError(
            f"{column} is {shown(cells[column])}", f"give a finite number of {unit} above 0"
        )
    return value
