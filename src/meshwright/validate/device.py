"""Whole training steps and their memory against measurements on one device. Enters: a file that
`benchmarks/calibrate_device.py` wrote. Leaves: each measured step beside its prediction.

Models are those of the zoo; how one is captured is handed in, so that this room needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files

import msgspec

from meshwright.base.units import Bytes, Seconds
from meshwright.cluster.model import Device
from meshwright.cost.memory import Optimizer, training_memory
from meshwright.cost.tables import pricer_of
from meshwright.cost.training import Host, training_step
from meshwright.graph.dtypes import cast_graph
from meshwright.graph.model import OperatorGraph


class MeasuredStep(msgspec.Struct, frozen=True):
    """What a device took for a step."""

    seconds: Seconds
    samples: tuple[Seconds, ...]
    host: Seconds
    peak: Bytes


class StepRow(msgspec.Struct, frozen=True):
    """One measured step: a model of the zoo with some sizes, a batch, an optimizer."""

    workload: str
    model: str
    sizes: dict[str, int]
    batch: int
    dtype: str
    optimizer: Optimizer
    measured: MeasuredStep

    @property
    def source(self) -> str:
        """The model as `load_model` takes it."""
        options = "&".join(f"{key}={value}" for key, value in self.sizes.items())
        return f"zoo:{self.model}" + (f"?{options}" if options else "")


class DeviceFindings(msgspec.Struct, frozen=True):
    """The whole file."""

    dispatch: Host
    steps: tuple[StepRow, ...]


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step beside its prediction."""

    row: StepRow
    predicted_s: Seconds
    predicted_bytes: Bytes
    launching: bool
    """Whether the host is predicted to set the pace."""

    @property
    def time_error(self) -> float:
        """Predicted against measured seconds."""
        return self.predicted_s / self.row.measured.seconds - 1

    @property
    def memory_error(self) -> float:
        """Predicted against measured peak bytes."""
        return self.predicted_bytes / self.row.measured.peak - 1


def embedded_findings() -> DeviceFindings:
    """The steps that were measured on an H200."""
    text = files("meshwright.validate").joinpath("data/h200_steps.json").read_bytes()
    return msgspec.json.decode(text, type=DeviceFindings)


def compare_steps(
    findings: DeviceFindings, device: Device, graph_of: Callable[[str, int], OperatorGraph]
) -> Iterator[StepComparison]:
    """Every measured step beside its prediction; `graph_of` captures a source at a batch."""
    pricer, captured = pricer_of(device), cache(graph_of)
    for row in findings.steps:
        graph = cast_graph(captured(row.source, row.batch), row.dtype)
        step = training_step(graph, pricer, row.optimizer, findings.dispatch)
        yield StepComparison(
            row=row,
            predicted_s=step.seconds,
            predicted_bytes=training_memory(graph, row.optimizer).total,
            launching=step.host >= step.seconds,
        )
