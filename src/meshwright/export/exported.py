"""Export targets (what each can express) and the result of an export. Enters: nothing. Leaves: the
nouns `Target`, `Lost` and `Exported`.

A target says what it can express; what it cannot is lost, each with a sentence, and what is written
instead is simulated beside the plan. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    Axis,
    ParallelConfig,
)
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Schedule
from meshwright.plan.plan import Plan, Prediction

Files = dict[str, str]
"""Texts by name."""


class ExportWriting(NamedTuple):
    """What a writer is given."""

    plan: Plan
    """As it was found."""
    graph: OperatorGraph
    """Of the model as it is."""
    written: Plan
    """What the configuration means."""
    config: ParallelConfig
    taken: Mapping[Axis, tuple[int, ...]]
    """The mesh factors of each axis."""
    head: str
    """What the file says of itself, as a comment."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a system can be told."""

    name: str
    what: str
    axes: tuple[Axis, ...]
    """The forms of parallelism that it has."""
    zero: tuple[int, ...]
    """Stages of ZeRO."""
    hybrid: bool = True
    """Whether ZeRO can shard among fewer devices than all of the data axis (HSDP)."""
    orders: tuple[tuple[Axis, ...], ...] = ()
    """How it can number ranks, innermost axis first; nothing: in any way."""
    schedules: tuple[Schedule, ...] = ("1f1b",)
    experts: bool = False
    transformers: bool = True
    """Whether it lays out models by their attention layers only."""
    programs: bool = False
    """Whether it carries out reduction programs."""
    checkpoints: Literal["all", "any", "as many in each stage"] = "all"
    """Of which layers activation checkpointing can be, where it is of some."""


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="pytorch",
            what="a script of stock PyTorch: DeviceMesh, FSDP2, DTensor, pipelining, DCP",
            axes=("tensor", "data", "pipeline"),
            zero=(0, 2, 3),
            schedules=("1f1b", "gpipe", "interleaved"),
            transformers=False,
            checkpoints="any",
        ),
        Target(
            name="megatron",
            what="a shell script with Megatron-LM's flags",
            axes=INNERMOST_FIRST,
            zero=(0, 1, 2, 3),
            orders=(INNERMOST_FIRST, PIPELINE_INSIDE),
            schedules=("1f1b", "interleaved"),
            experts=True,
            checkpoints="as many in each stage",
        ),
        Target(
            name="torchtitan",
            what="torchtitan's TOML (0.2) and Python configuration (0.3)",
            axes=INNERMOST_FIRST,
            zero=(0, 2, 3),
            orders=(INNERMOST_FIRST,),
            schedules=("1f1b", "gpipe", "interleaved"),
            experts=True,
        ),
        Target(
            name="jax",
            what="a Mesh, and a PartitionSpec for every parameter",
            axes=("tensor", "data"),
            zero=(0, 3),
            hybrid=False,
            transformers=False,
        ),
        Target(
            name="deepspeed",
            what="DeepSpeed's JSON configuration",
            axes=("data",),
            zero=(0, 1, 2, 3),
            hybrid=False,
            orders=(INNERMOST_FIRST,),
            transformers=False,
        ),
        Target(
            name="accelerate",
            what="Accelerate's YAML with FSDP2 and parallelism_config",
            axes=("tensor", "context", "data"),
            zero=(0, 2, 3),
            orders=(INNERMOST_FIRST,),
            transformers=False,
        ),
    )
}


def target_named(name: str) -> Target:
    """A target by its name."""
    if name not in TARGETS:
        raise InputError(f"there is no target {name!r}", nearest(name, TARGETS))
    return TARGETS[name]


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What is written of a plan for a target."""

    target: str
    config: ParallelConfig
    files: tuple[tuple[str, str], ...]
    """Names and texts."""
    lost: tuple[str, ...]
    """What the target cannot say, a sentence each."""
    plans: tuple[Plan, Plan]
    """As it was found, and what is written."""
    planned: Prediction
    written: Prediction
    """Of what was written, with single collectives and ranks where the files put them."""
