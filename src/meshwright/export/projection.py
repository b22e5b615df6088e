"""Projection of a uniform configuration onto what an export target can express. Enters: `Uniform`,
a `Target`. Leaves: the nearest `Uniform` that it can say, and what is lost on the way, a sentence
each.

An axis that a target lacks gives its factors to the data axis where there are samples for it, else
to the tensor axis; a stage of ZeRO becomes the next that holds less, else the last that there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.baselines.degrees.facts import Facts
from meshwright.baselines.degrees.parallel_config import Axis, ParallelConfig
from meshwright.baselines.degrees.placed import Rows, rows_of
from meshwright.baselines.degrees.refusals import divisibility_problems
from meshwright.cluster.cluster import Cluster
from meshwright.configs.written import summed_by
from meshwright.export.exported import Target
from meshwright.export.uniform import Uniform
from meshwright.sharding.layout import factors, sharding


class Fitted(NamedTuple):
    """What is to be written."""

    config: ParallelConfig
    taken: dict[Axis, tuple[int, ...]]
    ordered: bool
    """Whether ranks lie so by the target's own numbering."""
    lost: tuple[str, ...]


def fitted(uniform: Uniform, target: Target, cluster: Cluster, facts: Facts | None) -> Fitted:
    """The nearest that a target can say."""
    if target.transformers and facts is None:
        raise InputError(
            f"{target.name} lays out transformers, and the model has no repeated attention layers",
            "export --to pytorch",
        )
    lost: list[str] = []
    uniform = _with_axes(uniform, target, cluster, facts, lost)
    config = _with_layers(_with_options(uniform.config, target, lost), target, facts, lost)
    config, ordered = _placed(config, uniform, target, cluster)
    config = _with_neighbourhood(config, target, ordered, lost)
    return Fitted(config, uniform.taken, ordered, tuple(lost))


def sharded_factors(
    config: ParallelConfig, taken: Mapping[Axis, tuple[int, ...]], cluster: Cluster
) -> tuple[int, ...]:
    """The factors of the data axis along which ZeRO shards."""
    along = sharding(factors(cluster), config.shard_within)
    return tuple(f for f in taken["data"] if config.zero and along[f])


def _with_axes(
    uniform: Uniform, target: Target, cluster: Cluster, facts: Facts | None, lost: list[str]
) -> Uniform:
    """The axes that a target has."""
    for axis in ("pipeline", "context", "tensor"):
        if axis in target.axes or not uniform.taken[axis]:
            continue
        degree = uniform.config.degrees[axis]
        uniform, becomes = _given_away(uniform, axis, target, cluster, facts)
        lost.append(f"{axis} {degree} becomes {becomes}: {target.name} has no {axis} parallelism")
    if uniform.config.expert > 1 and not target.experts:
        lost.append(
            f"expert {uniform.config.expert} is dropped: every device computes all experts, whose "
            "parameters are sharded or replicated as all others"
        )
        uniform = replace(uniform, config=replace(uniform.config, expert=1))
    return uniform


def _given_away(
    uniform: Uniform, axis: Axis, target: Target, cluster: Cluster, facts: Facts | None
) -> tuple[Uniform, str]:
    sizes = [factor.size for factor in factors(cluster)]
    for other in ("data", "tensor"):
        if other not in target.axes:
            continue
        taken = {
            **uniform.taken,
            axis: (),
            other: tuple(sorted(uniform.taken[other] + uniform.taken[axis])),
        }
        degrees = {name: math.prod(sizes[f] for f in held) for name, held in taken.items()}
        for micro in range(uniform.config.micro_batches, 0, -1):
            # Runs of layers stay where the pipeline does.
            stages = (
                uniform.config.stages if uniform.config.chunks == 1 != degrees["pipeline"] else ()
            )
            config = replace(
                uniform.config, **degrees, micro_batches=micro, chunks=1, stages=stages
            )
            if facts is None or not divisibility_problems(facts, config):
                return replace(uniform, config=config, taken=taken), f"{other} {degrees[other]}"
    raise InputError(
        f"the plan has {axis} {uniform.config.degrees[axis]}, which {target.name} cannot say, and "
        "neither samples nor heads are enough to use these devices otherwise",
        "export --to megatron, or plan with --for " + target.name,
    )


def _with_options(config: ParallelConfig, target: Target, lost: list[str]) -> ParallelConfig:
    """The schedule and the stage of ZeRO that a target has."""
    schedule = config.options.schedule
    if config.pipeline == 1:
        config = replace(config, schedule="1f1b", chunks=1, stages=())
    elif schedule not in target.schedules:
        lost.append(f"the schedule {schedule} becomes 1f1b")
        stages = config.stages if config.chunks == 1 else ()
        config = replace(config, schedule="1f1b", chunks=1, stages=stages)
    if config.zero not in target.zero:
        more = [stage for stage in target.zero if stage > config.zero]
        stage = min(more) if more else max(target.zero)
        words = "parameters stay whole" if stage < 3 else "parameters are gathered for each use"
        lost.append(f"ZeRO {config.zero} becomes ZeRO {stage} ({words})")
        config = config.with_zero(stage, config.shard_within)
    summed = summed_by(target.name, config)
    if summed.sync_each != config.sync_each:
        often = "after each micro-batch" if summed.sync_each else "once a step, and held whole"
        lost.append(f"gradients are summed {often}")
    config = summed
    if config.optimizer == "momentum" and target.name in ("megatron", "torchtitan"):
        lost.append("SGD with momentum is written as sgd")
        config = replace(config, optimizer="sgd")
    if target.name == "accelerate" and config.zero == 0 and config.tensor * config.context > 1:
        lost.append(
            "ZeRO 0 becomes ZeRO 2: Accelerate has tensor and context parallelism with FSDP"
        )
        config = replace(config, zero=2)
    if target.name in ("accelerate", "jax") and config.sequence:
        lost.append("sequence parallelism: norms and residuals are replicated over the tensor axis")
        config = replace(config, sequence=False)
    if target.name == "torchtitan":
        config = _for_torchtitan(config, lost)
    return config


def _with_layers(
    config: ParallelConfig, target: Target, facts: Facts | None, lost: list[str]
) -> ParallelConfig:
    """Activation checkpointing of the layers that a target can name."""
    count, stages = config.recompute_layers, config.pipeline * config.chunks
    if facts is not None and count >= facts.layers:
        return replace(config, recompute_layers=0)
    if target.checkpoints == "any" or not (config.recompute and count):
        return config
    if target.checkpoints == "all":
        lost.append(f"activation checkpointing of {counted(count, 'layer')} becomes that of all")
        return replace(config, recompute_layers=0)
    each = -(-count // stages)
    if count % stages:
        lost.append(
            f"activation checkpointing of {counted(count, 'layer')} becomes that of "
            f"{each * stages}: {each} in each stage"
        )
    every = facts is not None and each * stages >= facts.layers
    return replace(config, recompute_layers=0 if every else each * stages)


def _for_torchtitan(config: ParallelConfig, lost: list[str]) -> ParallelConfig:
    """FSDP shards over data and context together; DDP and full float32 go without it."""
    sharing = config.data * config.context
    if sharing == 1:
        config = config.with_zero(0, 0)
    elif config.zero == 0 and (config.context > 1 or config.tensor * config.pipeline > 1):
        lost.append("ZeRO 0 becomes ZeRO 2: torchtitan's DDP goes with no other parallelism")
        config = replace(config, zero=2)
    if config.mixed and sharing == 1:
        lost.append("mixed precision: torchtitan has it with FSDP only, so this trains in float32")
        config = replace(config, mixed=False)
    return config


def _with_neighbourhood(
    config: ParallelConfig, target: Target, ordered: bool, lost: list[str]
) -> ParallelConfig:
    """The devices among which ZeRO shards, where a target can say them: those of a mesh of any
    order, or a part of its data axis.
    """
    devices, across = config.shard_within, config.inside_data * config.data
    part = ordered and not (devices and (devices % config.inside_data or across % devices))
    if not devices or (target.hybrid and (part or not target.orders)):
        return config
    text = f"{config.options.sharded} becomes ZeRO {config.zero} over the whole data axis"
    if target.name == "deepspeed" and config.zero == 3:
        text += (
            f", with parameters sharded again within {devices} devices for backward passes "
            "(zero_hpz_partition_size), which the predicted figure does not have"
        )
    lost.append(text)
    return replace(config, shard_within=0)


def _placed(
    config: ParallelConfig, uniform: Uniform, target: Target, cluster: Cluster
) -> tuple[ParallelConfig, bool]:
    """The order of ranks that puts axes where the plan does, if the target has one."""
    if not target.orders:
        return config, True
    planned = parallelism_matrix_of(uniform, cluster)
    legal: list[ParallelConfig] = []
    for order in target.orders:
        ordered = replace(config, order=order)
        try:
            rows = rows_of(ordered.degrees, cluster)
        except InputError:
            continue
        legal.append(ordered)
        if rows == planned:
            return ordered, True
    return (legal or [replace(config, order=target.orders[0])])[0], False


def parallelism_matrix_of(uniform: Uniform, cluster: Cluster) -> Rows:
    """The parallelism matrix of a plan's axes."""
    rows = {axis: [1] * len(cluster.levels) for axis in uniform.taken}
    for number, (level, size) in enumerate(factors(cluster)):
        for axis, held in uniform.taken.items():
            if number in held:
                rows[axis][level] *= size
    return {axis: tuple(row) for axis, row in rows.items()}


def devices_by_rank(
    config: ParallelConfig, taken: dict[Axis, tuple[int, ...]], cluster: Cluster
) -> tuple[int, ...]:
    """For each rank, numbered along the axes in their order, the device where it lies."""
    sizes = [factor.size for factor in factors(cluster)]
    strides = [math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    # From the slowest digit to the fastest: outermost axis first, of each the outermost factor.
    digits = [factor for axis in reversed(config.order) for factor in taken[axis]]
    return tuple(_devices(digits, sizes, strides))


def _devices(digits: list[int], sizes: list[int], strides: list[int]) -> Iterator[int]:
    for rank in range(math.prod(sizes)):
        device, rest = 0, rank
        for factor in reversed(digits):
            rest, digit = divmod(rest, sizes[factor])
            device += digit * strides[factor]
        yield device
