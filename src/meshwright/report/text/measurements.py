"""Measured against predicted: terminal report and JSON of a run or a calibration. Enters: a
measurement, a prediction. Leaves: tables, words, documents; every column says which of the two it
is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins
from rich.table import Table

from meshwright.base.quantities import (
    Bytes,
    Seconds,
    counted,
    format_gibibytes,
    format_seconds,
    format_traffic,
)
from meshwright.plan.plan import Held, Measurement, OneDevice, Plan, Prediction
from meshwright.report.documents import Document
from meshwright.report.predictions import describe_machine, exposed, parts_of
from meshwright.report.terminal_tables import new_table

if TYPE_CHECKING:
    from meshwright.calibrate.profile_calls import CallCalibration

MOST = 12
"""Lines of each part of a table."""

WIDTH = 100
"""Columns of a paragraph."""


def calibration_document(calibration: CallCalibration, calls: int, out: str) -> Document:
    """`calibrate --json`."""
    return {
        "calls": calls,
        "measured": calibration.measured,
        "known": calibration.known,
        "failures": [str(failure) for failure in calibration.failures],
        "stopped": calibration.stopped,
        "saved": out,
    }


def describe_run(plan: Plan, measurement: Measurement) -> str:
    """What was run, in a line."""
    losses = measurement.loss
    fell = f"loss {losses[0]:.6g} -> {losses[-1]:.6g}" if losses else "no loss"
    return (
        f"Plan '{plan.origin}' of {plan.graph.name!r} on {describe_machine(plan.cluster)}: "
        f"{counted(len(measurement.steps), 'step')} measured after one to warm up, {fell}."
    )


def table_of_both(prediction: Prediction, measurement: Measurement) -> Table:
    """The whole step, predicted and measured."""
    table = new_table("", "predicted>", "measured>", "measured / predicted>")

    def row(what: str, before: float, after: float, text: str) -> None:
        ratio = f"{after / before:.2f}" if before else ""
        shown = {"s": format_seconds, "moved": format_traffic, "bytes": format_gibibytes}[text]
        table.add_row(what, shown(before), shown(after), ratio)

    row("step", prediction.step, measurement.step, "s")
    if measurement.compute:
        row("  compute on the busiest device", prediction.compute, measurement.compute, "s")
        row("  exposed communication and waiting", exposed(prediction), measurement.exposed, "s")
    row("communication volume", prediction.moved, measurement.moved, "moved")
    row("peak memory", prediction.memory.total, measurement.memory.total, "bytes")
    before, after = _comparable(prediction.memory), _comparable(measurement.memory)
    for part, held in after.items():
        row(f"  {part}", before[part], held, "bytes")
    return table


def _comparable(memory: Held) -> dict[str, Bytes]:
    """What a device holds, by parts that a run can tell apart."""
    parts = parts_of(memory)
    rest = Bytes(parts.pop("activations") + parts.pop("workspace"))
    return parts | {"activations and workspace": rest}


def describe_one_device(one: OneDevice) -> str:
    """Whether a run computes what plain PyTorch computes on one device, and what was compared.

    >>> from meshwright.plan.plan import Tolerance
    >>> one = OneDevice(dtype="float64", loss=(2.0, 1.0), here=(2.0, 1.0), loss_error=0.0,
    ...                 gradient_error=2e-15, gradient="w", parameter_error=3e-14, parameter="w",
    ...                 compared=4, still=("k.bias",),
    ...                 tolerance=Tolerance(loss=1e-9, gradient=1e-7, parameter=1e-6))
    >>> print(describe_one_device(one))  # doctest: +NORMALIZE_WHITESPACE
    Equal to one device: yes. Plain PyTorch did the same 2 steps in float64 (measured): loss 2 -> 1,
    here 2 -> 1.
    Largest relative differences: of a loss 0.0e+00 (1e-09 allowed), of a first gradient 2.0e-15
    ('w', 1e-07 allowed), of a parameter after the steps 3.0e-14 ('w', 1e-06 allowed); 4 parameters
    compared, and 1 left out whose gradient is zero on both sides ('k.bias').
    """
    allowed = one.tolerance
    judged = "not judged" if allowed.parameter is None else f"{allowed.parameter:.0e} allowed"
    lines = (
        f"Equal to one device: {_ANSWERS[one.equal]}. Plain PyTorch did the same "
        f"{counted(len(one.loss), 'step')} in {one.dtype} (measured): loss {one.loss[0]:.9g} -> "
        f"{one.loss[-1]:.9g}, here {one.here[0]:.9g} -> {one.here[-1]:.9g}.",
        f"Largest relative differences: of a loss {one.loss_error:.1e} ({allowed.loss:.0e} "
        f"allowed), of a first gradient {one.gradient_error:.1e} ({one.gradient!r}, "
        f"{allowed.gradient:.0e} allowed), of a parameter after the steps "
        f"{one.parameter_error:.1e} ({one.parameter!r}, {judged}); "
        f"{counted(one.compared, 'parameter')} compared{_still(one.still)}.",
    )
    return "\n".join(textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in lines)


_ANSWERS = {
    True: "yes",
    False: "NO",
    None: "not known, since all gradients are rounding and losses alone were compared",
}


def _still(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(map(repr, names[:2])) + (", ..." if len(names) > 2 else "")
    return f", and {len(names)} left out whose gradient is zero on both sides ({shown})"


def _one_device(one: OneDevice) -> Document:
    return {"equal": one.equal, **to_builtins(one)}


def table_of_parts(measurement: Measurement) -> Table:
    """Where the time and the bytes of a step went, as measured."""
    table = new_table("measured", "what~", ">")
    for kind, rows in (
        ("forward", measurement.operators),
        ("backward", measurement.segments),
        ("travelling", measurement.transfers),
    ):
        for name, seconds in rows[:MOST]:
            table.add_row(kind, name, format_seconds(seconds))
        _add_rest(table, kind, rows[MOST:])
    for level, moved in measurement.levels:
        table.add_row("bytes across", level, format_traffic(moved))
    return table


def _add_rest(table: Table, kind: str, rows: Sequence[tuple[str, Seconds]]) -> None:
    if rows:
        rest = sum(seconds for _, seconds in rows)
        table.add_row(kind, f"{len(rows)} others", format_seconds(Seconds(rest)))


def measurement_document(measurement: Measurement, prediction: Prediction) -> Document:
    """A measurement beside its prediction, for scripts."""

    def named(rows: Sequence[tuple[str, float]]) -> list[Document]:
        return [{"name": name, "seconds": seconds} for name, seconds in rows]

    return {
        "measured": {
            "step_s": measurement.step,
            "steps_s": list(measurement.steps),
            "compute_s": measurement.compute,
            "exposed_s": measurement.exposed,
            "moved_bytes": measurement.moved,
            "memory": parts_of(measurement.memory),
            "memory_bytes": measurement.memory.total,
            "operators": named(measurement.operators),
            "segments": named(measurement.segments),
            "transfers": named(measurement.transfers),
            "levels": [{"level": name, "bytes": moved} for name, moved in measurement.levels],
            "loss": list(measurement.loss),
            "one_device": None
            if measurement.one_device is None
            else _one_device(measurement.one_device),
        },
        "predicted": {
            "step_s": prediction.step,
            "compute_s": prediction.compute,
            "exposed_s": exposed(prediction),
            "moved_bytes": prediction.moved,
            "memory": parts_of(prediction.memory),
            "memory_bytes": prediction.memory.total,
        },
    }
