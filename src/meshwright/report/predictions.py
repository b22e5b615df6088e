"""Shared tables and wording of predictions, peak memory and clusters in reports. Enters:
predictions, clusters. Leaves: rows of a table of strategies, words, parts of documents; every
figure is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.table import Table

from meshwright.base.quantities import Bytes, format_gibibytes, format_rate, format_seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import describe_software
from meshwright.graph.workload import workload
from meshwright.plan.plan import Held, Plan, Prediction
from meshwright.report.band_text import band_document
from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.report.throughput_text import (
    mfu_cell,
    rate,
    throughput_document,
    unit_of,
)
from meshwright.simulate.throughput import throughput


class PredictionRow(NamedTuple):
    """A strategy in a table of strategies."""

    name: str
    plan: Plan
    prediction: Prediction
    speedup: float | None
    missing: int
    """Bytes by which a device is too small; 0 if the strategy fits."""
    marked: bool


def strategies_table(rows: Iterable[PredictionRow]) -> Table:
    """Strategies side by side."""
    listed = tuple(rows)
    unit = unit_of(workload(listed[-1].plan.graph)) if listed else "samples"
    table = new_table(
        "strategy", "micro-batches>", "step>", f"{unit}/s/device>", "MFU>", "speed-up>",
        "peak memory>",
    )  # fmt: skip
    table.add_column("fits")
    for row in listed:
        done = throughput(row.plan, row.prediction)
        table.add_row(
            row.name,
            str(row.plan.options.micro_batches),
            format_seconds(row.prediction.step),
            format_rate(rate(done) / done.devices),
            mfu_cell(done),
            "" if row.speedup is None else f"{row.speedup:.2f}x",
            format_gibibytes(row.prediction.memory.total),
            f"over {format_gibibytes(row.missing)}" if row.missing else "yes",
            style="bold" if row.marked else None,
        )
    return table


def describe_refused(refused: Iterable[tuple[str, str]]) -> str:
    """Why baselines were left out, a line each."""
    return "\n".join(f"{name} does not apply: {reason}" for name, reason in refused)


def refused_document(refused: Iterable[tuple[str, str]]) -> list[Document]:
    """Why baselines were left out, for scripts."""
    return [{"name": name, "reason": reason} for name, reason in refused]


def describe_peak(memory: Held, limit: int) -> str:
    """The peak of memory beside what a device has, where and when."""
    holds = f"{format_gibibytes(memory.total)} of {format_gibibytes(limit)}"
    return (
        f"peak memory: {holds} ({memory.device}, t = {format_seconds(memory.seconds)}, predicted)"
    )


def describe_memory_by_kind(memory: Held) -> str:
    """What a device holds, by kind, without what it holds none of."""
    parts = (f"{name} {format_gibibytes(n)}" for name, n in parts_of(memory).items() if n)
    return ", ".join(parts)


def describe_machine(cluster: Cluster) -> str:
    """A cluster and the sizes of its levels.

    >>> describe_machine(Cluster.named("dgx-h100", node=2))
    'dgx-h100 (2 node x 8 gpu)'
    """
    sizes = " x ".join(f"{level.cardinality} {level.name}" for level in cluster.levels)
    return f"{cluster.name} ({sizes})"


def describe_predicted(cluster: Cluster) -> str:
    """That nothing was measured, and which software the figures are about.

    >>> describe_predicted(Cluster.named("dgx-h100"))
    'every figure is predicted, priced as eager PyTorch'
    """
    return f"every figure is predicted, priced as {describe_software(cluster)}"


def machine_document(cluster: Cluster) -> Document:
    """A cluster, for scripts."""
    return {
        "cluster": cluster.name,
        "hierarchy": list(cluster.hierarchy),
        "devices": cluster.devices,
        "device_bytes": cluster.device.memory,
        "software": describe_software(cluster),
    }


def prediction_document(plan: Plan, prediction: Prediction, missing: int) -> Document:
    """A prediction, for scripts; `missing` are the bytes by which a device is too small."""
    memory = prediction.memory
    return {
        **throughput_document(throughput(plan, prediction)),
        "step_s": prediction.step,
        "band": band_document(plan, prediction.step),
        "compute_s": prediction.compute,
        "exposed_s": exposed(prediction),
        "moved_bytes": prediction.moved,
        "memory": parts_of(memory),
        "memory_bytes": memory.total,
        "fullest_device": memory.device,
        "fullest_at_s": memory.seconds,
        "missing_bytes": missing,
        "fits": not missing,
    }


def parts_of(memory: Held) -> dict[str, Bytes]:
    """What a device holds, by part; the framework's where the device's description tells it."""
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "workspace": memory.workspace,
    }
    return parts | ({"framework": memory.framework} if memory.framework else {})


def exposed(prediction: Prediction) -> float:
    """What of a step the busiest device does not compute."""
    return prediction.step - prediction.compute
