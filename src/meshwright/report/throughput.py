"""Throughput in words and for scripts. Enters: a `Throughput`, a step's parts. Leaves: lines, cells
of tables, documents; every figure is predicted.
"""

from __future__ import annotations

import math

from meshwright.base.units import format_count, format_rate, format_seconds
from meshwright.explain.step_parts import StepParts
from meshwright.graph.workload import Workload
from meshwright.plan.model import Plan
from meshwright.report.documents import Document
from meshwright.simulate.throughput import Throughput

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
"""What people call dtypes."""

AMOUNT = 1e9
"""Tokens, or samples, that device-hours are told for."""


def describe_workload(own: Workload) -> str:
    """Batch, sequence and dtype.

    >>> describe_workload(Workload(samples=64, sequence=8192, dtype="bfloat16", model_flops=1))
    'batch 64 x 8192 tokens, bf16'
    """
    tokens = f" x {own.sequence} tokens" if own.sequence else ""
    batch = f"batch {own.samples}{tokens}, " if own.samples else ""
    return batch + SHORT.get(own.dtype, own.dtype)


def describe_training(plan: Plan) -> str:
    """The optimizer, and the precision that it keeps parameters in."""
    mixed = " with fp32 master weights" if plan.options.mixed else ""
    return plan.options.optimizer + mixed


def unit_of(own: Workload) -> str:
    """What is counted."""
    return "tokens" if own.tokens else "samples"


def rate(own: Throughput) -> float:
    """Tokens a second, or samples where there are none."""
    return own.tokens_per_s or own.samples_per_s


def describe_throughput(own: Throughput) -> str:
    """Tokens or samples a second, of all devices and of one; MFU and HFU."""
    unit, value = unit_of(own.workload), rate(own)
    words = [f"{format_rate(value)} {unit}/s, {format_rate(value / own.devices)} a device"]
    if own.mfu is not None and own.hfu is not None:
        peak = f"{format_count(own.peak or 0.0)}FLOP/s {SHORT.get(own.workload.dtype, '')}"
        words.append(f"MFU {own.mfu:.1%}, HFU {own.hfu:.1%} of {peak.rstrip()}")
    return "; ".join(words)


def describe_cost(own: Throughput) -> str:
    """Device-hours of a billion tokens or samples.

    >>> work = Workload(samples=1000, sequence=1000, dtype="bfloat16", model_flops=1)
    >>> from meshwright.base.units import Seconds
    >>> describe_cost(Throughput(
    ...     workload=work, step=Seconds(3.6), devices=10, executed_flops=1, peak=None))
    '10.0 device-hours for 1 B tokens (1.0 h on these 10 devices)'
    """
    hours = own.device_hours(AMOUNT)
    if not math.isfinite(hours):
        return "device-hours are not known: the graph does not tell its samples"
    alone = own.days(AMOUNT) * 24
    return (
        f"{hours:,.1f} device-hours for 1 B {unit_of(own.workload)} "
        f"({alone:,.1f} h on these {own.devices} devices)"
    )


def describe_parts(own: StepParts) -> str:
    """A step as what it is made of."""
    words = [
        f"computing {format_seconds(own.compute)}",
        f"exposed communication {format_seconds(own.exposed)}",
    ]
    if own.bubble:
        words.append(f"pipeline bubble {format_seconds(own.bubble)}")
    return f"{format_seconds(own.step)} = {' + '.join(words)}"


def mfu_cell(own: Throughput) -> str:
    """MFU in a table."""
    return "" if own.mfu is None else f"{own.mfu:.1%}"


def throughput_document(own: Throughput) -> Document:
    """For scripts; null where something is not known."""
    work = own.workload
    hours = own.device_hours(AMOUNT)
    return {
        "batch": work.samples,
        "sequence": work.sequence,
        "dtype": work.dtype,
        "samples_per_s": own.samples_per_s,
        "tokens_per_s": own.tokens_per_s,
        "per_device_per_s": rate(own) / own.devices,
        "model_flops": work.model_flops,
        "executed_flops": own.executed_flops,
        "mfu": own.mfu,
        "hfu": own.hfu,
        "device_hours_per_billion": hours if math.isfinite(hours) else None,
    }


def parts_document(own: StepParts) -> Document:
    """What a step is made of, for scripts."""
    return {"exposed_communication_s": own.exposed, "bubble_s": own.bubble}
