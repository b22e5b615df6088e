"""Diff of two parallel configurations, in the words of the framework. Enters: `ParallelConfig`s, a
form. Leaves: lines to write into the file, in the words of the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from meshwright.baselines.degrees.parallel_config import PIPELINE_INSIDE, ParallelConfig
from meshwright.configs.written import Form, summed_by

Setting = tuple[str, str]
"""A name and its value; a value may be empty."""


def changes(
    form: Form, before: ParallelConfig, after: ParallelConfig, samples: int
) -> tuple[str, ...]:
    """The settings of the second that the first has otherwise.

    >>> one, two = ParallelConfig(data=8, tensor=2), ParallelConfig(data=2, tensor=8)
    >>> changes("megatron", one, two, 16)
    ('--tensor-model-parallel-size 8', '--micro-batch-size 8')
    """
    old, new = (dict(WRITERS[form](config, samples)) for config in (before, after))
    added = [_line(form, name, new[name]) for name in new if old.get(name) != new[name]]
    dropped = [f"without {name}" for name in old if name not in new]
    return (*added, *dropped)


def settings(form: Form, config: ParallelConfig, samples: int) -> tuple[str, ...]:
    """All settings of a configuration, as its reader takes them."""
    return tuple(_line(form, name, value) for name, value in WRITERS[form](config, samples))


def _line(form: Form, name: str, value: str) -> str:
    equals = " = " if form == "torchtitan" else " " if value else ""
    return f"{name}{equals}{value}"


def _micro_batch(config: ParallelConfig, samples: int) -> int:
    return max(1, samples // (config.data * config.micro_batches))


def _megatron(config: ParallelConfig, samples: int) -> Iterator[Setting]:
    yield "--tensor-model-parallel-size", str(config.tensor)
    yield "--pipeline-model-parallel-size", str(config.pipeline)
    yield "--context-parallel-size", str(config.context)
    if config.expert > 1:
        yield "--expert-model-parallel-size", str(config.expert)
    if config.order == PIPELINE_INSIDE:
        yield "--use-tp-pp-dp-mapping", ""
    if config.chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(config.chunks)
    yield "--micro-batch-size", str(_micro_batch(config, samples))
    if config.sequence:
        yield "--sequence-parallel", ""
    if config.zero:
        yield "--use-distributed-optimizer", ""
    if config.replicas > 1:
        yield "--num-distributed-optimizer-instances", str(config.replicas)
    if config.zero > 1:
        yield "--use-megatron-fsdp", ""
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[config.zero]
        yield "--data-parallel-sharding-strategy", strategy
    if config.recompute:
        yield "--recompute-granularity", "full"
        some = config.recompute_layers
        yield "--recompute-method", "block" if some else "uniform"
        each = some // (config.pipeline * config.chunks)
        yield "--recompute-num-layers", str(each if some else 1)


def _torchtitan(config: ParallelConfig, samples: int) -> Iterator[Setting]:
    micro_batch = _micro_batch(config, samples)
    sharded = config.zero > 0
    replicate = config.replicas if sharded else config.data
    yield "parallelism.data_parallel_replicate_degree", str(replicate)
    yield "parallelism.data_parallel_shard_degree", str(config.data // replicate)
    yield "parallelism.tensor_parallel_degree", str(config.tensor)
    yield "parallelism.context_parallel_degree", str(config.context)
    yield "parallelism.pipeline_parallel_degree", str(config.pipeline)
    if config.expert > 1:
        yield "parallelism.expert_parallel_degree", str(config.expert)
    if config.pipeline > 1:
        plain = "GPipe" if config.schedule == "gpipe" else "1F1B"
        schedule = "Interleaved1F1B" if config.chunks > 1 else plain
        yield "parallelism.pipeline_parallel_schedule", f'"{schedule}"'
        yield "parallelism.pipeline_parallel_microbatch_size", str(micro_batch)
        yield "training.local_batch_size", str(samples // config.data)
        yield "training.global_batch_size", "-1"
    else:
        accumulates = config.micro_batches > 1
        yield "training.local_batch_size", str(micro_batch)
        yield "training.global_batch_size", str(samples if accumulates else -1)
    if sharded:
        policy = "never" if config.zero == 2 else "always"
        yield "parallelism.fsdp_reshard_after_forward", f'"{policy}"'
    yield "activation_checkpoint.mode", '"full"' if config.recompute else '"none"'


def _options(config: ParallelConfig, samples: int) -> Iterator[Setting]:
    for axis in ("data", "tensor", "context", "pipeline"):
        yield f"--{axis}", str(config.degrees[axis])
    if config.chunks > 1:
        yield "--virtual", str(config.chunks)
    yield "--micro-batches", str(config.micro_batches)
    yield "--zero", str(config.zero)
    if config.sync_each != summed_by("torchtitan", config).sync_each:
        yield "--sync-each" if config.sync_each else "--no-sync-each", ""
    if config.shard_within:
        yield "--shard-within", str(config.shard_within)
    if config.recompute:
        yield "--recompute", ""


WRITERS: Mapping[Form, Callable[[ParallelConfig, int], Iterator[Setting]]] = {
    "torchtitan": _torchtitan,
    "megatron": _megatron,
    "options": _options,
}
