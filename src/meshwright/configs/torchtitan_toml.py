"""torchtitan's job configuration in TOML. Enters: the text of a job's configuration, a number of
devices. Leaves: a `Written`.

Names and defaults are those of `torchtitan/config/job_config.py` (2025, commit 000204a4); what is
missing has its default there. The mesh is (pp, dp_replicate, dp_shard, cp, tp), outermost first.
Versions since 0.3 are configured in Python: `torchtitan_python` reads them into the same sections.

    dp_shard > 1           FSDP: ZeRO 3; 2 where parameters stay after the forward pass, which is
                           the default in a pipeline
    cp > 1                 shards over dp_shard x cp
    tensor parallelism     always with sequence parallelism
    micro-batches          gradient accumulation, times local_batch_size / microbatch_size in a
                           pipeline
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError, nearest, shown
from meshwright.baselines.degrees.configured import with_virtual_stage_layers
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.rates import HIDDEN_TENSOR, SELECTIVE, Software
from meshwright.configs.written import Written, micro_batches_of
from meshwright.plan.options import Schedule

DEGREES = {
    "data_parallel_replicate_degree": 1,
    "data_parallel_shard_degree": -1,
    "tensor_parallel_degree": 1,
    "context_parallel_degree": 1,
    "pipeline_parallel_degree": 1,
    "expert_parallel_degree": 1,
}
"""With their defaults."""

COUNTED = {
    *DEGREES, "fsdp_reshard_after_forward", "pipeline_parallel_schedule",
    "pipeline_parallel_microbatch_size", "pipeline_parallel_layers_per_stage",
    "module_fqns_per_model_part",
}  # fmt: skip

SILENT = {
    "enable_compiled_autograd", "disable_loss_parallel", "pipeline_parallel_split_points",
    "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_schedule_csv", "context_parallel_rotate_method",
    "expert_tensor_parallel_degree", "enable_async_tensor_parallel",
}  # fmt: skip
"""Known, and not counted."""

SCHEDULES: Mapping[str, tuple[Schedule, int]] = {
    "1F1B": ("1f1b", 1),
    "GPipe": ("gpipe", 1),
    "Interleaved1F1B": ("interleaved", 2),
    "InterleavedZeroBubble": ("interleaved", 2),
    "LoopedBFS": ("interleaved", 2),
    "ZBVZeroBubble": ("interleaved", 2),
    "DualPipeV": ("interleaved", 2),
}
"""Which of ours each is priced as, with how many stages a device."""

ALIKE = ("1F1B", "GPipe", "Interleaved1F1B")

MODELS = {
    ("llama3", "8B"): "zoo:llama3-8b?sequence={sequence}",
    ("llama3", "70B"): "zoo:llama3-70b?sequence={sequence}",
    ("llama3", "405B"): "zoo:llama3-70b?layers=126&hidden=16384&heads=128&inner=53248"
    "&sequence={sequence}",
    ("llama3", "debugmodel"): "zoo:llama3-8b?layers=6&hidden=256&heads=16&key_value_heads=16"
    "&inner=768&vocabulary=2048&sequence={sequence}",
}
"""By name and flavor, as the zoo has it."""

OPTIMIZERS = {"Adam": "adam", "AdamW": "adam", "SGD": "sgd"}

Table = Mapping[str, object]


class _Degrees(NamedTuple):
    replicate: int
    shard: int
    tensor: int
    context: int
    pipeline: int
    expert: int


def read_torchtitan(text: str, devices: int) -> Written:
    """A job's configuration."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is not TOML: {error}", "give a torchtitan job file") from None
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    return read_tables(tables, devices)


def read_tables(tables: Mapping[str, Table], devices: int) -> Written:
    """A job's configuration, section by section."""
    if "parallelism" not in tables and "training" not in tables:
        raise InputError(
            "it has neither a [parallelism] nor a [training] section",
            "give a torchtitan job file, or Megatron flags in a .sh or .txt file",
        )
    parallelism, training = tables.get("parallelism", {}), tables.get("training", {})
    degrees = _degrees(parallelism, devices)
    written = _laid_out(degrees, tables)
    batch, micro_batches, problems = _batch(degrees, parallelism, training)
    config = replace(written.config, micro_batches=micro_batches)
    notes = (*written.notes, *_unknown(parallelism))
    return replace(
        written, config=config, batch=batch, problems=problems, notes=notes,
        model=_model(tables), ignored=_ignored(tables),
    )  # fmt: skip


def _degrees(parallelism: Table, devices: int) -> _Degrees:
    degrees = {name: _whole(parallelism, name, default) for name, default in DEGREES.items()}
    for name, degree in degrees.items():
        if degree < 1 and (name, degree) != ("data_parallel_shard_degree", -1):
            raise InputError(
                f"parallelism.{name} is {degree}",
                "give 1 or more; only data_parallel_shard_degree may be -1, for what is left",
            )
    replicate, shard, tensor, context, pipeline, expert = degrees.values()
    if shard == -1:
        shard = max(1, devices // (replicate * tensor * context * pipeline))
    return _Degrees(replicate, shard, tensor, context, pipeline, expert)


def _laid_out(degrees: _Degrees, tables: Mapping[str, Table]) -> Written:
    """Everything but the batch and the model."""
    parallelism, training = tables.get("parallelism", {}), tables.get("training", {})
    sharded = degrees.shard * degrees.context > 1
    name = _text(parallelism, "pipeline_parallel_schedule", "1F1B")
    schedule, chunks = _schedule(name)
    mode = _text(tables.get("activation_checkpoint", {}), "mode", "selective")
    dtype, mixed, notes = _precision(degrees, training, sharded)
    if mode not in ("none", "full"):
        notes.append(f"activation_checkpoint.mode {mode!r} is priced as keeping {SELECTIVE:.0%} of "
                     "what autograd saves, as published peaks say, and computing the rest "
                     "again")  # fmt: skip
    if degrees.pipeline > 1 and name not in ALIKE:
        notes.append(f"schedule {name} is priced as Interleaved1F1B, whose bubble is larger")
    layers_each, parts = None, _parts(parallelism)
    if parts and len(parts) % degrees.pipeline == 0:
        chunks = len(parts) // degrees.pipeline
    elif schedule == "interleaved" and "pipeline_parallel_layers_per_stage" in parallelism:
        layers_each = _whole(parallelism, "pipeline_parallel_layers_per_stage", 1)
    optimizer = _text(tables.get("optimizer", {}), "name", "AdamW")
    config = ParallelConfig(
        data=degrees.replicate * degrees.shard,
        tensor=degrees.tensor,
        context=degrees.context,
        pipeline=degrees.pipeline,
        expert=degrees.expert,
        chunks=chunks if degrees.pipeline > 1 else 1,
        schedule=schedule if schedule != "interleaved" else "1f1b",
        zero=_zero(degrees, parallelism) if sharded else 0,
        recompute=mode == "full",
        sequence=degrees.tensor > 1,
        uneven=True,
        optimizer="sgd" if OPTIMIZERS.get(optimizer) == "sgd" else "adam",
        mixed=mixed,
    )
    if sharded:
        config = config.with_replicas(degrees.replicate)
    if parts and len(parts) == config.pipeline * config.chunks:
        config = with_virtual_stage_layers(config, parts)
    return Written(
        form="torchtitan",
        config=config,
        dtype=dtype,
        layers_each=layers_each,
        notes=tuple(notes),
        software=_software(tables, mixed, SELECTIVE if mode not in ("none", "full") else 1.0),
    )


def _parts(parallelism: Table) -> tuple[int, ...]:
    """The layers of each stage that lists its modules; nothing if some have none."""
    parts = parallelism.get("module_fqns_per_model_part")
    if not isinstance(parts, list):
        return ()
    counts = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    return counts if min(counts, default=0) else ()


def _software(tables: Mapping[str, Table], mixed: bool, keeps: float) -> Software:
    """PyTorch's kernels, fused where they are compiled; gradients are reduced in float32."""
    compiled = tables.get("compile", {}).get("enable") is True
    compiled |= tables.get("training", {}).get("compile") is True
    hides = tables.get("parallelism", {}).get("enable_async_tensor_parallel") is True
    return Software(
        fuses=compiled, wide=mixed, keeps=keeps, hidden_tensor=HIDDEN_TENSOR if hides else 0.0
    )


def _schedule(name: str) -> tuple[Schedule, int]:
    schedule = {known.casefold(): entry for known, entry in SCHEDULES.items()}.get(name.casefold())
    if schedule is None:
        raise InputError(
            f"parallelism.pipeline_parallel_schedule is {name!r}", nearest(name, SCHEDULES)
        )
    return schedule


def _precision(degrees: _Degrees, training: Table, sharded: bool) -> tuple[str, bool, list[str]]:
    """The dtype, whether float32 copies are kept, and what is to be said about it."""
    stored = _text(training, "dtype", "float32")
    computed = _text(training, "mixed_precision_param", "bfloat16")
    if stored != "float32" or computed == "float32":
        return stored, False, []
    if not sharded and (degrees.tensor > 1 or degrees.pipeline > 1):
        return "float32", False, [
            "mixed precision comes with FSDP, which data_parallel_shard_degree 1 switches off: "
            "this trains in float32"
        ]  # fmt: skip
    return computed, True, []


def _zero(degrees: _Degrees, parallelism: Table) -> int:
    policy = _text(parallelism, "fsdp_reshard_after_forward", "default")
    keeps = policy == "never" or (policy == "default" and degrees.pipeline > 1)
    return 2 if keeps else 3


def _batch(
    degrees: _Degrees, parallelism: Table, training: Table
) -> tuple[int, int, tuple[tuple[str, str], ...]]:
    """Samples in a step, micro-batches, and what does not divide."""
    local, data = _whole(training, "local_batch_size", 8), degrees.replicate * degrees.shard
    total = _whole(training, "global_batch_size", -1)
    if total < 1:
        total = local * data
    micro_batch = local
    if degrees.pipeline > 1:
        micro_batch = _whole(parallelism, "pipeline_parallel_microbatch_size", 1)
        if local % micro_batch:
            problem = f"training.local_batch_size {local} is no multiple of "
            problem += f"parallelism.pipeline_parallel_microbatch_size {micro_batch}"
            near = -(-local // micro_batch) * micro_batch
            return total, max(1, total // data // micro_batch), (
                (problem, f"give a local batch of {near}, or a size that divides {local}"),
            )  # fmt: skip
    count, problems = micro_batches_of(total, local, data, "training.global_batch_size")
    return total, count * (local // micro_batch), problems


def _model(tables: Mapping[str, Table]) -> str | None:
    model, training = tables.get("model", {}), tables.get("training", {})
    source = MODELS.get((_text(model, "name", ""), _text(model, "flavor", "")))
    return source and source.format(sequence=_whole(training, "seq_len", 2048))


def _unknown(parallelism: Table) -> tuple[str, ...]:
    known = {*COUNTED, *SILENT}
    return tuple(
        f"parallelism.{name} is not known here and not counted; {nearest(name, COUNTED)}"
        for name in parallelism
        if name not in known
    )


def _ignored(tables: Mapping[str, Table]) -> tuple[str, ...]:
    counted = {
        *(f"parallelism.{name}" for name in COUNTED), "activation_checkpoint.mode",
        "optimizer.name", "model.name", "model.flavor", "training.local_batch_size",
        "training.global_batch_size", "training.seq_len", "training.dtype",
        "training.mixed_precision_param",
    }  # fmt: skip
    every = (f"{name}.{key}" for name, table in tables.items() for key in table)
    return tuple(name for name in every if name not in counted)


def _whole(table: Table, name: str, default: int) -> int:
    value = table.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {shown(value)}", "give a whole number")
    return value


def _text(table: Table, name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}", "give a text in quotes")
    return value
