"""Whole training steps and their memory against measurements on one device. Enters: a file that
`benchmarks/calibrate_device.py` wrote. Leaves: each measured step beside its prediction.

A step becomes a plan of one device, which is simulated as every plan is. Models are those of the
zoo; how one is captured is handed in, so that this room needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files

import msgspec

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import Optimizer, training_memory
from meshwright.explain.step_parts import step_parts
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate.simulation import simulate


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


class MeasuredDispatch(msgspec.Struct, frozen=True):
    """What the host needed for small operators, one after the other."""

    forward: Seconds
    backward: Seconds


class DeviceFindings(msgspec.Struct, frozen=True):
    """The whole file."""

    dispatch: MeasuredDispatch
    """What the description's `dispatch` was read off, times 1.5 for the Python of modules."""
    steps: tuple[StepRow, ...]


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step beside its prediction."""

    row: StepRow
    predicted_s: Seconds
    predicted_bytes: Bytes
    launching: bool
    """Whether the device is predicted to wait for its host."""

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
    findings: DeviceFindings, cluster: Cluster, graph_of: Callable[[str, int], OperatorGraph]
) -> Iterator[StepComparison]:
    """Every measured step beside its prediction on one device of a cluster; `graph_of` captures a
    source at a batch.
    """
    alone = cluster.resized(dict.fromkeys(cluster.level_names, 1))
    captured = cache(graph_of)
    for row in findings.steps:
        graph = cast_graph(captured(row.source, row.batch), row.dtype)
        layouts = [Layout((REPLICA,) * len(factors(alone)))] * len(units(graph))
        options = Options(optimizer=row.optimizer)
        simulation = simulate(Plan.of(row.workload, graph, alone, layouts, options))
        yield StepComparison(
            row=row,
            predicted_s=simulation.prediction.step,
            predicted_bytes=training_memory(graph, row.optimizer).total,
            launching=step_parts(simulation).host > 0,
        )
