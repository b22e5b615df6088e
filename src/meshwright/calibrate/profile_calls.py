"""Resumable profiling of operator calls into a profile table. Enters: calls. Leaves: a table's
file, and what happened.

The file grows by whole lines, so that a calibration can be stopped at any time and go on where it
stopped. Which calls are worth it is told in `calls`, how one is measured in `measure`, how prices
are read off a table in `price`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TextIO

import msgspec
import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.calibrate.measure import measure_call
from meshwright.calibrate.provenance import price_origin
from meshwright.cost.profile_table import Origin, PriceTable, format_header, format_row, parse_table
from meshwright.graph.operator_graph import Call

Progress = Callable[[int, int, Call], None]
"""Told, before each call is measured, how many are done, how many there are, and which is next."""

StopReason = Literal["done", "interrupted", "out of time", "device lost"]

EACH, SHARED = Seconds(0.03), Seconds(0.15)
"""What the readings of one pass of one call may take, alone and beside other ranks."""


class Failure(msgspec.Struct, frozen=True):
    """A call that could not be measured, and PyTorch's first line about it."""

    call: Call
    reason: str

    def __str__(self) -> str:
        shapes = ", ".join("-" if s is None else str(list(s.shape)) for s in self.call.inputs)
        return f"{self.call.kind}({shapes}) cannot be measured: {self.reason}"


class CallCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration did, and why it stopped."""

    measured: int
    known: int
    """Calls whose rows were in the file before."""
    failures: tuple[Failure, ...]
    stopped: StopReason


def calibrate(
    calls: Iterable[Call],
    device: torch.device,
    file: Path,
    command: str,
    progress: Progress,
    *,
    each: Seconds | None = None,
    total: Seconds | None = None,
    ranks: int | None = None,
) -> CallCalibration:
    """Measure what the file does not hold yet, until all is done, `total` is spent or Ctrl-C.

    An operator that fails is named in the result and left out. `ranks` is how many compute at once,
    this one included (`company`).
    """
    budget = (EACH if ranks is None else SHARED) if each is None else each
    deadline = None if total is None else time.monotonic() + total
    held = _prepared(file, price_origin(device, command, ranks))
    wanted = tuple(dict.fromkeys(calls))
    left = [call for call in wanted if call not in held]
    known = len(wanted) - len(left)
    failures: list[Failure] = []
    measured: list[Call] = []
    stopped: StopReason = "done"
    with file.open("a", encoding="utf-8") as lines:
        try:
            for done, call in enumerate(left, known):
                if deadline is not None and time.monotonic() >= deadline:
                    stopped = "out of time"
                    break
                progress(done, len(wanted), call)
                failure = _appended(call, device, lines, budget)
                if failure is None:
                    measured.append(call)
                    continue
                failures.append(failure)
                if not _answers(device):
                    stopped = "device lost"
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
    return CallCalibration(
        measured=len(measured), known=known, failures=tuple(failures), stopped=stopped
    )


def _appended(call: Call, device: torch.device, lines: TextIO, each: Seconds) -> Failure | None:
    """Measure a call into the file, or say why it cannot be: any operator may fail in any way."""
    try:
        row = measure_call(call, device, budget=each)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Failure(call, reason)
    lines.write(format_row(row))
    lines.flush()
    return None


def _answers(device: torch.device) -> bool:
    """Whether the device still works: an illegal access on a GPU ends all that follows."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _prepared(file: Path, origin: Origin) -> frozenset[Call]:
    """The calls that a file holds, once its cut-off last line is gone and its header is there."""
    content = file.read_bytes() if file.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    if not whole:
        file.write_text(format_header(origin), encoding="utf-8")
        return frozenset()
    table = parse_table(whole.decode(), str(file))
    _refuse_other_origin(table, origin, file)
    return frozenset(row.call for row in table.rows)


def _refuse_other_origin(table: PriceTable, origin: Origin, file: Path) -> None:
    before, now = (f"{o.device} with {o.software}" for o in (table.origin, origin))
    if before != now:
        raise InputError(
            f"{str(file)!r} holds prices of {before}, and this is {now}", "give another file"
        )
