"""What a run has shown, beside what was predicted. Enters: a measurement, a prediction. Leaves:
tables, words, documents; every column says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins
from rich.table import Table

from meshwright.foundation.units import (
    Seconds,
    counted,
    format_gibibytes,
    format_seconds,
    format_traffic,
)
from meshwright.plan.model import Measurement, OneDevice, Plan, Prediction
from meshwright.report.documents import Document
from meshwright.report.predictions import describe_machine, parts_of
from meshwright.report.tables import new_table

if TYPE_CHECKING:
    from meshwright.run.calibrate import Calibration

MOST = 12
"""Lines of each part of a table."""


def calibration_document(found: Calibration, calls: int, out: str) -> Document:
    """`calibrate --json`."""
    return {
        "calls": calls,
        "measured": found.measured,
        "known": found.known,
        "failures": [str(own) for own in found.failures],
        "stopped": found.stopped,
        "saved": out,
    }


def describe_run(plan: Plan, found: Measurement) -> str:
    """What was run, in a line."""
    losses = found.loss
    fell = f"loss {losses[0]:.6g} -> {losses[-1]:.6g}" if losses else "no loss"
    return (
        f"Plan '{plan.origin}' of {plan.graph.name!r} on {describe_machine(plan.cluster)}: "
        f"{counted(len(found.steps), 'step')} measured after one to warm up, {fell}."
    )


def table_of_both(prediction: Prediction, found: Measurement) -> Table:
    """The whole step, predicted and measured."""
    table = new_table("", "predicted>", "measured>", "measured / predicted>")

    def row(what: str, before: float, after: float, text: str) -> None:
        ratio = f"{after / before:.2f}" if before else ""
        shown = {"s": format_seconds, "moved": format_traffic, "bytes": format_gibibytes}[text]
        table.add_row(what, shown(before), shown(after), ratio)

    row("step", prediction.step, found.step, "s")
    if found.compute:
        row("  compute on the busiest device", prediction.compute, found.compute, "s")
    row("moved between devices", prediction.moved, found.moved, "moved")
    row("memory on the fullest device", prediction.memory.total, found.memory.total, "bytes")
    for part, held in parts_of(found.memory).items():
        row(f"  {part}", parts_of(prediction.memory)[part], held, "bytes")
    return table


def describe_one_device(one: OneDevice, losses: Sequence[float]) -> str:
    """How far a run is from plain PyTorch on one device, in two lines.

    >>> one = OneDevice(loss=(2.0, 1.0), loss_error=0.0, parameter_error=3e-8, parameter="w")
    >>> print(describe_one_device(one, (2.0, 1.0)))
    The same steps by plain PyTorch on one device (measured): loss 2 -> 1, here 2 -> 1.
    Largest relative differences: of a loss 0.0e+00, of a parameter after these steps 3.0e-08 ('w').
    """
    return (
        "The same steps by plain PyTorch on one device (measured): "
        f"loss {one.loss[0]:.9g} -> {one.loss[-1]:.9g}, here {losses[0]:.9g} -> {losses[-1]:.9g}.\n"
        f"Largest relative differences: of a loss {one.loss_error:.1e}, of a parameter after these "
        f"steps {one.parameter_error:.1e} ({one.parameter!r})."
    )


def table_of_parts(found: Measurement) -> Table:
    """Where the time and the bytes of a step went, as measured."""
    table = new_table("measured", "what~", ">")
    for kind, rows in (
        ("forward", found.operators),
        ("backward", found.segments),
        ("travelling", found.transfers),
    ):
        for name, seconds in rows[:MOST]:
            table.add_row(kind, name, format_seconds(seconds))
        _add_rest(table, kind, rows[MOST:])
    for level, moved in found.levels:
        table.add_row("bytes across", level, format_traffic(moved))
    return table


def _add_rest(table: Table, kind: str, rows: Sequence[tuple[str, Seconds]]) -> None:
    if rows:
        rest = sum(seconds for _, seconds in rows)
        table.add_row(kind, f"{len(rows)} others", format_seconds(Seconds(rest)))


def measurement_document(found: Measurement, prediction: Prediction) -> Document:
    """A measurement beside its prediction, for scripts."""

    def named(rows: Sequence[tuple[str, float]]) -> list[Document]:
        return [{"name": name, "seconds": seconds} for name, seconds in rows]

    return {
        "measured": {
            "step_s": found.step,
            "steps_s": list(found.steps),
            "compute_s": found.compute,
            "moved_bytes": found.moved,
            "memory": parts_of(found.memory),
            "memory_bytes": found.memory.total,
            "operators": named(found.operators),
            "segments": named(found.segments),
            "transfers": named(found.transfers),
            "levels": [{"level": name, "bytes": moved} for name, moved in found.levels],
            "loss": list(found.loss),
            "one_device": None if found.one_device is None else to_builtins(found.one_device),
        },
        "predicted": {
            "step_s": prediction.step,
            "compute_s": prediction.compute,
            "moved_bytes": prediction.moved,
            "memory": parts_of(prediction.memory),
            "memory_bytes": prediction.memory.total,
        },
    }
