"""Parallel configuration: degrees of DP, TP, CP, PP and EP, ZeRO, micro-batches. Enters: nothing.
Leaves: the noun `ParallelConfig`.

An axis is a form of parallelism; the axes multiply to the devices. Their order says how ranks are
numbered: devices that differ only along the innermost axis are neighbours. Experts take no devices
of their own: they are spread over those of the context and data axes. Files, models and machines
are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import takewhile
from typing import Literal

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import require_whole
from meshwright.base.quantities import Bytes, counted
from meshwright.cost.memory import Optimizer
from meshwright.plan.options import SHARDS_GRADIENTS, Options, Schedule

Axis = Literal["tensor", "context", "data", "pipeline"]

INNERMOST_FIRST: tuple[Axis, ...] = ("tensor", "context", "data", "pipeline")
"""torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp) and Megatron's order tp-cp-ep-dp-pp."""

PIPELINE_INSIDE: tuple[Axis, ...] = ("tensor", "context", "pipeline", "data")
"""Megatron's --use-tp-pp-dp-mapping: tp-cp-ep-pp-dp."""


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is laid out, as a person says it.

    >>> str(ParallelConfig(data=4, tensor=8, zero=1))
    'DP 4, TP 8; ZeRO 1'
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    """How many ways experts are spread, over devices of the context and data axes."""
    folded: bool = False
    """Whether experts are spread over the tensor axis first, none of them cut by it (Megatron's
    --expert-tensor-parallel-size 1)."""
    chunks: int = 1
    """Runs of layers on each stage of the pipeline (virtual stages)."""
    micro_batches: int = 1
    schedule: Schedule = "1f1b"
    zero: int = 0
    sync_each: bool = False
    """As `Options.sync_each`."""
    shard_within: int = 0
    """As `Options.shard_within`."""
    recompute: bool = False
    recompute_layers: int = 0
    """As `Options.recompute_layers`."""
    sequence: bool = False
    """Whether norms and residuals are cut along the sequence by the tensor axis."""
    uneven: bool = False
    """Whether stages may have one layer more than others."""
    stages: tuple[int, ...] = ()
    """The layers of each run of them, in their order; nothing: as equal as they can be."""
    optimizer: Optimizer = "adam"
    mixed: bool = False
    bucket: Bytes = Bytes(0)
    """As `Options.bucket`."""
    early: bool = False
    """As `Options.early`."""
    order: tuple[Axis, ...] = INNERMOST_FIRST

    def __post_init__(self) -> None:
        for name, value in (*self.degrees.items(), ("expert", self.expert)):
            require_whole(value, f"the degree of {name} is")
        require_whole(self.chunks, "the number of virtual stages on a device is")
        if self.stages and len(self.stages) != self.pipeline * self.chunks:
            raise InputError(
                f"the layers of {len(self.stages)} stages are given, and there are "
                f"{self.pipeline * self.chunks}",
                "give as many counts as pipeline x virtual stages",
            )
        if sorted(self.order) != sorted(INNERMOST_FIRST):
            raise InputError(f"the order of axes is {self.order}", "name each axis once")
        _ = self.options

    @property
    def degrees(self) -> Mapping[Axis, int]:
        """How many ways each axis goes, the innermost first."""
        ways: dict[Axis, int] = {
            "tensor": self.tensor,
            "context": self.context,
            "data": self.data,
            "pipeline": self.pipeline,
        }
        return {axis: ways[axis] for axis in self.order}

    @property
    def devices(self) -> int:
        """What the degrees multiply to."""
        return math.prod(self.degrees.values())

    @property
    def inside_data(self) -> int:
        """Devices in a row that hold the same samples: those of the axes inside of data's."""
        inside = takewhile(lambda axis: axis != "data", self.order)
        return math.prod(self.degrees[axis] for axis in inside)

    @property
    def replicas(self) -> int:
        """Copies of what ZeRO shards (HSDP)."""
        return max(1, self.inside_data * self.data // (self.shard_within or self.devices))

    def with_replicas(self, copies: int) -> ParallelConfig:
        """The same with so many copies of what ZeRO shards, which divide the data axis.

        >>> ParallelConfig(data=8, zero=3).with_replicas(2).shard_within
        4
        """
        within = self.inside_data * self.data // copies
        return msgspec.structs.replace(self, shard_within=within if copies > 1 else 0)

    def with_zero(self, stage: int, within: int) -> ParallelConfig:
        """The same with another stage of ZeRO, within so many devices if it shards anything."""
        each = self.sync_each and stage >= SHARDS_GRADIENTS
        within = within if stage else 0
        return msgspec.structs.replace(self, zero=stage, shard_within=within, sync_each=each)

    @property
    def options(self) -> Options:
        """What is decided for the whole graph."""
        return Options(
            optimizer=self.optimizer,
            mixed=self.mixed,
            micro_batches=self.micro_batches,
            schedule="interleaved" if self.chunks > 1 else self.schedule,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers if self.recompute else 0,
            zero=self.zero,
            sync_each=self.sync_each,
            shard_within=self.shard_within,
            bucket=self.bucket,
            early=self.early,
        )

    def __str__(self) -> str:
        named: dict[str, int] = {
            "DP": self.data,
            "TP": self.tensor,
            "CP": self.context,
            "PP": self.pipeline,
            "EP": self.expert,
        }
        if self.folded and self.expert > 1 < self.tensor:
            named["EP over TP"] = named.pop("EP")
        words = [", ".join(f"{name} {n}" for name, n in named.items() if n > 1 or name == "DP")]
        if self.chunks > 1:
            words.append(f"{self.chunks} virtual stages a device")
        if self.stages:
            words.append(f"stages of {' + '.join(map(str, self.stages))} layers")
        if self.micro_batches > 1:
            words.append(f"{self.micro_batches} micro-batches")
        if self.sequence and self.tensor > 1:
            words.append("sequence parallel")
        if self.zero:
            words.append(self.options.sharded)
        if self.recompute:
            some = f" of {counted(self.recompute_layers, 'layer')}" if self.recompute_layers else ""
            words.append(f"activation checkpointing{some}")
        return "; ".join(words)
