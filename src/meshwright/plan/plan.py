"""The `Plan`: a graph on a cluster, a layout for every op group, and global options. Enters: a
graph, a cluster, layouts and options. Leaves: a `Plan`.

A plan holds its graph and its cluster, so that it can be simulated, run and explained by itself.
It checks itself: every unit of the graph has one layout, which fits the machine and the operator,
and the step can be cut into its micro-batches. So whatever is planned can be run.
What a plan costs is told by `simulate`, how it was found by `search`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import (
    Bytes,
    Seconds,
    counted,
    format_bytes,
    format_seconds,
    format_traffic,
)
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import NCCL, backend_named
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.sharding.layout import (
    Layout,
    MeshFactor,
    checked_layout,
    factors,
    inner_group_sizes,
    sharding,
)
from meshwright.sharding.micro_batches import micro_batch_states
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import sharding_classes, units

VERSION = 1


class PlannedReduction(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over some factors of the machine, and the program that carries it out."""

    over: tuple[int, ...]
    """The factors that are summed over, by number."""
    beside: tuple[int, ...]
    """The factors along which the same runs side by side."""
    bytes: float
    """Held by each device."""
    program: str


class PlannedChain(msgspec.Struct, frozen=True, kw_only=True):
    """A collective over some factors of the machine that several of its kind carry out."""

    collective: str
    over: tuple[int, ...]
    """All factors, by number."""
    bytes: float
    """Held by each device."""
    steps: tuple[tuple[int, ...], ...]
    """The factors of each, in the order of running."""


@printed
class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A graph on a cluster, with a layout for every unit."""

    origin: str
    """Where it comes from, as "data parallel"."""
    graph: OperatorGraph
    cluster: Cluster
    layouts: tuple[tuple[str, str], ...]
    """For each unit, by the name of its first operator, the layout as text."""
    options: Options = Options()
    programs: tuple[PlannedReduction, ...] = ()
    chains: tuple[PlannedChain, ...] = ()
    """Of bytes that none is named for, the one for the nearest counts; what none is for is one."""
    backend: str = NCCL.name
    """The communication library that programs were chosen for and predictions are about."""
    model: str = ""
    """What the graph was captured from, as `capture.load` reads it; empty if nobody said."""
    batch: int | None = None
    """The samples in a step that the model was asked for; None: as many as it has by itself."""
    rewrites: tuple[str, ...] = ()
    """The rules that made the graph of the one that was captured, with their places."""

    def __post_init__(self) -> None:
        backend_named(self.backend)
        names = [unit.name for unit in self.units]
        laid_out = [name for name, _ in self.layouts]
        known, placed = set(names), set(laid_out)
        for name in laid_out:
            if name not in known:
                raise InputError(
                    f"the plan lays out {name!r}, which begins no unit of graph "
                    f"{self.graph.name!r}",
                    f"{nearest(name, names)}; or take the graph that it was made for",
                )
        if len(placed) < len(laid_out):
            twice = next(name for name in laid_out if laid_out.count(name) > 1)
            raise InputError(f"the plan lays out {twice!r} twice", "keep one of its layouts")
        missing = [name for name in names if name not in placed]
        if missing:
            others = f" and {len(missing) - 1} other units" if len(missing) > 1 else ""
            raise InputError(
                f"the plan has no layout for {missing[0]!r}{others}",
                "give every unit one, or take the graph that it was made for",
            )
        micro_batch_states(self.graph, self.options.micro_batches)
        self._refuse_other_neighbourhoods()
        alike, checked = sharding_classes(self.graph), set[tuple[int, Layout]]()
        for unit, kind in zip(self.units, alike, strict=True):
            layout = self.layout[unit.name]
            if (kind, layout) in checked:
                continue
            checked.add((kind, layout))
            checked_layout(layout, unit.extents, self.factors, f"unit {unit.name!r}")
            self._refuse_too_small_micro_batches(unit, layout)

    def _refuse_other_neighbourhoods(self) -> None:
        devices, known = self.options.shard_within, inner_group_sizes(self.factors)
        if devices and devices not in known:
            counts = ", ".join(map(str, known)) or "nothing"
            raise InputError(
                f"ZeRO shards within {devices} devices, which are none of {self.cluster.name}'s "
                "neighbourhoods",
                f"give {counts}, or 0 for all devices",
            )

    def _refuse_too_small_micro_batches(self, unit: OpGroup, layout: Layout) -> None:
        degrees, micro = layout.degrees(self.factors), self.options.micro_batches
        for number, split in enumerate(unit.splits):
            degree = degrees.get(split.name, 1)
            if not unit.cuttable(number, degree * unit.micro_ways(number, micro)):
                raise InputError(
                    f"unit {unit.name!r} cuts {split.name!r} {degree} ways, which the "
                    f"{micro} micro-batches are too small for",
                    "give fewer micro-batches, a larger batch or another layout",
                )

    def sheet(self) -> Sheet:
        """What is decided: options, and every layout with how many units have it."""
        options, layouts = self.options, Counter(text for _, text in self.layouts)
        levels = (f"{level.name} {level.cardinality}" for level in self.cluster.levels)
        return Sheet(
            f"plan '{self.origin}' of graph {self.graph.name} on {self.cluster.name}",
            (
                (
                    "devices",
                    " x ".join(levels),
                ),
                ("micro-batches", f"{options.micro_batches} ({options.schedule})"),
                ("optimizer", f"{options.optimizer}, {options.sharded}"),
                ("activation checkpointing", options.recomputed),
                ("reduction programs", str(len(self.programs))),
                ("collectives in steps", str(sum(len(chain.steps) > 1 for chain in self.chains))),
            ),
            ("units", "layout, outermost factor first"),
            tuple((str(count), text) for text, count in layouts.most_common()),
        )

    def changed(self, **values: object) -> Plan:
        """The plan with other values; programs and chains, which follow from the rest, are left
        out.
        """
        return msgspec.structs.replace(self, programs=(), chains=(), **values)

    @cached_property
    def units(self) -> tuple[OpGroup, ...]:
        """The units of the graph."""
        return units(self.graph)

    @cached_property
    def factors(self) -> tuple[MeshFactor, ...]:
        """The factors of the cluster."""
        return factors(self.cluster)

    @cached_property
    def sharding(self) -> tuple[bool, ...]:
        """Along which factors ZeRO shards what would be copied."""
        return sharding(self.factors, self.options.shard_within)

    @cached_property
    def layout(self) -> Mapping[str, Layout]:
        """The layouts by the name of the unit."""
        known = {text: Layout.parse(text) for text in {text for _, text in self.layouts}}
        return {name: known[text] for name, text in self.layouts}

    @staticmethod
    def of(
        origin: str,
        graph: OperatorGraph,
        cluster: Cluster,
        layouts: Sequence[Layout],
        options: Options | None = None,
    ) -> Plan:
        """A plan from one layout for each unit, in the order of `sharding.units`."""
        named = zip((unit.name for unit in units(graph)), map(str, layouts), strict=True)
        return Plan(
            origin=origin,
            graph=graph,
            cluster=cluster,
            layouts=tuple(named),
            options=options or Options(),
        )


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on the fullest device at its fullest moment, by what they hold."""

    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    workspace: Bytes
    framework: Bytes = Bytes(0)
    """What is no tensor: contexts, communicators' buffers, what the allocator cannot use."""
    device: str
    seconds: Seconds
    """When."""

    @property
    def tensors(self) -> Bytes:
        """What PyTorch's allocator has handed out: all but the framework's."""
        parts = (self.parameters, self.gradients, self.optimizer, self.activations, self.workspace)
        return Bytes(sum(parts))

    @property
    def total(self) -> Bytes:
        """All of it."""
        return Bytes(self.tensors + self.framework)


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which differences a run counts as equal to one device."""

    loss: float
    gradient: float
    parameter: float | None
    """None: parameters are not judged."""


class OneDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The same steps by plain PyTorch on one device, and how far a run is from them. Measured."""

    dtype: str
    """What both computed in."""
    loss: tuple[float, ...]
    """Of each step, on one device."""
    here: tuple[float, ...]
    """Of the same steps by the plan."""
    loss_error: float
    """The largest difference of a step's loss, relative to the loss."""
    gradient_error: float
    """The largest difference of a number of any parameter's gradient in the first step, relative to
    the largest number of that gradient."""
    gradient: str
    """The parameter whose gradient differs most."""
    parameter_error: float
    """The largest difference of a number of any parameter after the last step, relative to the
    largest number of that parameter."""
    parameter: str
    """The one that differs most."""
    compared: int
    """Parameters whose gradients and values were compared."""
    still: tuple[str, ...] = ()
    """Parameters whose gradient is zero, or rounding, on both sides: they tell nothing."""
    tolerance: Tolerance

    @property
    def equal(self) -> bool | None:
        """Whether the run computes what one device computes; None if no gradient tells."""
        allowed = self.tolerance
        within = (
            self.loss_error <= allowed.loss
            and self.gradient_error <= allowed.gradient
            and (allowed.parameter is None or self.parameter_error <= allowed.parameter)
        )
        return None if within and not self.compared else within


@printed
class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says of a plan, with the fields of a `Prediction`. Measured, not predicted."""

    step: Seconds
    """The median."""
    steps: tuple[Seconds, ...]
    compute: Seconds
    """How long the busiest device computes, in a step whose parts were timed."""
    moved: Bytes
    """What leaves a device in a step, summed over the machine."""
    memory: Held
    """Activations and workspace together, as activations: a run cannot tell them apart."""
    exposed: Seconds = Seconds(0.0)
    """How long the same device waited for others in that step, on the way or in a bubble."""
    operators: tuple[tuple[str, Seconds], ...] = ()
    """Forward seconds of operators on the device that takes longest, the longest first."""
    segments: tuple[tuple[str, Seconds], ...] = ()
    """Backward seconds of runs of units, by the name of the first."""
    transfers: tuple[tuple[str, Seconds], ...] = ()
    """Seconds of what travelled, as "settle w", from when a device begins until it is done."""
    levels: tuple[tuple[str, Bytes], ...] = ()
    """Bytes that crossed each level in a step, by the outermost that they crossed."""
    loss: tuple[float, ...] = ()
    """Of each step."""
    one_device: OneDevice | None = None
    """If the same steps were trained there too."""

    def sheet(self) -> Sheet:
        """The figures of a step."""
        facts = _figures(self.step, self.compute, self.moved, self.memory)
        losses = (f"{loss:.6g}" for loss in self.loss)
        return Sheet(
            f"measured, median of {counted(len(self.steps), 'step')}",
            (*facts, ("loss", ", ".join(losses) or "none")),
        )


@printed
class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation says of a plan. Predicted, not measured."""

    step: Seconds
    compute: Seconds
    """How long the busiest device computes."""
    moved: Bytes
    """What leaves a device, summed over the machine."""
    memory: Held
    missing: Bytes
    """By how much the fullest device is too small; 0 if the plan fits."""

    def sheet(self) -> Sheet:
        """The figures of a step."""
        fits = "yes" if not self.missing else f"no, {format_bytes(self.missing)} are missing"
        facts = _figures(self.step, self.compute, self.moved, self.memory)
        return Sheet("predicted", (*facts, ("fits", fits)))


def _figures(
    step: Seconds, compute: Seconds, moved: Bytes, memory: Held
) -> tuple[tuple[str, str], ...]:
    return (
        ("step", format_seconds(step)),
        ("busiest device computes", format_seconds(compute)),
        ("communication volume", format_traffic(moved)),
        ("peak memory", format_bytes(memory.total)),
    )
