"""Profile tables: measured prices of operators. Enters: rows that `meshwright calibrate` wrote.
Leaves: a `PriceTable`, which says on which device, with which software, when and by which command.

A table is a text file: a JSON header line, then one JSON line for each measured call, so that a
calibration that was cut off can go on where it stopped. How a price is read off a table is told
in `operator`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.graph.operator_graph import Call


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prices of a table come from."""

    device: str
    """As the device names itself: "NVIDIA H200"."""
    software: str
    """As "torch 2.11.0+cu130, CUDA 13.0, driver 580.159"."""
    date: str
    command: str


class MeasuredCall(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's call with its measured seconds."""

    call: Call
    forward: Seconds
    backward: Seconds | None = None
    """For the gradients of all inputs that can have one; None where there are none."""


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """Measured prices of one device."""

    origin: Origin
    rows: tuple[MeasuredCall, ...]


def format_header(origin: Origin) -> str:
    """The first line of a table's file."""
    return msgspec.json.encode(origin).decode() + "\n"


def format_row(row: MeasuredCall) -> str:
    """One further line of a table's file."""
    return msgspec.json.encode(row).decode() + "\n"


def parse_table(text: str, file: str) -> PriceTable:
    """A table from its text; a last line that was cut off is left out."""
    lines = text.splitlines(keepends=True)
    try:
        origin = msgspec.json.decode(lines[0] if lines else "", type=Origin)
        rows = tuple(
            msgspec.json.decode(line, type=MeasuredCall)
            for line in lines[1:]
            if line.endswith("\n")
        )
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{file} is not a table of prices ({error})", "write one with 'meshwright calibrate'"
        ) from None
    return PriceTable(origin=origin, rows=rows)


def load_table(path: str | Path) -> PriceTable:
    """A table from a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot read the prices in {str(path)!r} ({reason})",
            "write them with 'meshwright calibrate'",
        ) from None
    return parse_table(text, str(path))
