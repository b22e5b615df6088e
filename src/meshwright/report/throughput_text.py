"""Throughput, MFU and HFU in words and for scripts. Enters: a `Throughput`, a step's parts. Leaves:
lines, cells of tables, documents; every figure is predicted.
"""

from __future__ import annotations

import math

from meshwright.base.quantities import format_count, format_rate, format_seconds
from meshwright.explain.step_parts import StepParts
from meshwright.graph.workload import Workload
from meshwright.plan.plan import Plan
from meshwright.report.documents import Document
from meshwright.simulate.throughput import Throughput

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
"""What people call dtypes."""

AMOUNT = 1e9
"""Tokens, or samples, that device-hours are told for."""


def describe_workload(workload: Workload) -> str:
    """Batch, sequence and dtype.

    >>> describe_workload(Workload(samples=64, sequence=8192, dtype="bfloat16", model_flops=1))
    'batch 64 x 8192 tokens, bf16'
    """
    tokens = f" x {workload.sequence} tokens" if workload.sequence else ""
    batch = f"batch {workload.samples}{tokens}, " if workload.samples else ""
    return batch + SHORT.get(workload.dtype, workload.dtype)


def describe_training(plan: Plan) -> str:
    """The optimizer, and the precision that it keeps parameters in."""
    mixed = " with fp32 master weights" if plan.options.mixed else ""
    return plan.options.optimizer + mixed


def unit_of(workload: Workload) -> str:
    """What is counted."""
    return "tokens" if workload.tokens else "samples"


def rate(throughput: Throughput) -> float:
    """Tokens a second, or samples where there are none."""
    return throughput.tokens_per_s or throughput.samples_per_s


def describe_throughput(throughput: Throughput) -> str:
    """Tokens or samples a second, of all devices and of one; MFU and HFU."""
    unit, value = unit_of(throughput.workload), rate(throughput)
    words = [f"{format_rate(value)} {unit}/s, {format_rate(value / throughput.devices)} a device"]
    if throughput.mfu is not None and throughput.hfu is not None:
        dtype = SHORT.get(throughput.workload.dtype, "")
        peak = f"{format_count(throughput.peak or 0.0)}FLOP/s {dtype}"
        words.append(f"MFU {throughput.mfu:.1%}, HFU {throughput.hfu:.1%} of {peak.rstrip()}")
    return "; ".join(words)


def describe_cost(throughput: Throughput) -> str:
    """Device-hours of a billion tokens or samples.

    >>> work = Workload(samples=1000, sequence=1000, dtype="bfloat16", model_flops=1)
    >>> from meshwright.base.quantities import Seconds
    >>> describe_cost(Throughput(
    ...     workload=work, step=Seconds(3.6), devices=10, executed_flops=1, peak=None))
    '10.0 device-hours for 1 B tokens (1.0 h on these 10 devices)'
    """
    hours = throughput.device_hours(AMOUNT)
    if not math.isfinite(hours):
        return "device-hours are not known: the graph does not tell its samples"
    alone = throughput.days(AMOUNT) * 24
    return (
        f"{hours:,.1f} device-hours for 1 B {unit_of(throughput.workload)} "
        f"({alone:,.1f} h on these {throughput.devices} devices)"
    )


def describe_step_parts(parts: StepParts) -> str:
    """A step as what it is made of."""
    words = [
        f"computing {format_seconds(parts.compute)}",
        f"exposed communication {format_seconds(parts.exposed)}",
    ]
    if parts.host:
        words.append(f"waiting for the host {format_seconds(parts.host)}")
    if parts.bubble:
        words.append(f"pipeline bubble {format_seconds(parts.bubble)}")
    return f"{format_seconds(parts.step)} = {' + '.join(words)}"


def mfu_cell(throughput: Throughput) -> str:
    """MFU in a table."""
    return "" if throughput.mfu is None else f"{throughput.mfu:.1%}"


def throughput_document(throughput: Throughput) -> Document:
    """For scripts; null where something is not known."""
    work = throughput.workload
    hours = throughput.device_hours(AMOUNT)
    return {
        "batch": work.samples,
        "sequence": work.sequence,
        "dtype": work.dtype,
        "samples_per_s": throughput.samples_per_s,
        "tokens_per_s": throughput.tokens_per_s,
        "per_device_per_s": rate(throughput) / throughput.devices,
        "model_flops": work.model_flops,
        "executed_flops": throughput.executed_flops,
        "mfu": throughput.mfu,
        "hfu": throughput.hfu,
        "device_hours_per_billion": hours if math.isfinite(hours) else None,
    }


def step_parts_document(parts: StepParts) -> Document:
    """What a step is made of, for scripts."""
    return {
        "exposed_communication_s": parts.exposed,
        "host_s": parts.host,
        "bubble_s": parts.bubble,
    }
