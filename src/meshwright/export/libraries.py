"""DeepSpeed and Accelerate export: ds_config.json, accelerate.yaml, TrainingArguments. Enters:
`ExportWriting`. Leaves: the files that their launchers and Transformers' Trainer read. They say
degrees and ZeRO; the training script stays the user's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.rank_files import gpus_of

HALF = {"bfloat16": "bf16", "float16": "fp16"}
"""What the libraries call 16-bit numbers."""


ARGUMENTS = '''"""For Transformers' Trainer what accelerate.yaml is for other scripts; use one."""
{head}
from typing import Any
{imports}
from transformers import TrainingArguments


def training_arguments(**others: Any) -> TrainingArguments:
    """TrainingArguments of the plan; give output_dir, learning_rate ... besides."""
    return TrainingArguments(
{arguments}
        **others,
    )
'''

OPTIMIZERS = {"adam": "adamw_torch", "sgd": "sgd", "momentum": "sgd"}
"""What Transformers calls optimizers; momentum is an argument of its own."""


def samples_of(writing: ExportWriting) -> int:
    """In a step."""
    return min((tensor.dims[0][1] for tensor in writing.graph.inputs if tensor.dims), default=1)


def write_deepspeed(writing: ExportWriting) -> Files:
    """`ds_config.json`; JSON has no comments, so what was planned and lost is beside it."""
    config, samples = writing.config, samples_of(writing)
    each, options = samples // config.data, writing.plan.options
    zero: dict[str, object] = {"stage": config.zero, "overlap_comm": config.zero > 0}
    if config.zero == options.zero == 3 and options.shard_within:
        zero["zero_hpz_partition_size"] = options.shard_within
    document: dict[str, object] = {
        "train_batch_size": each * config.data,
        "train_micro_batch_size_per_gpu": each // config.micro_batches,
        "gradient_accumulation_steps": config.micro_batches,
        "zero_optimization": zero,
    }
    half = HALF.get(writing.graph.parameters[0].tensor.dtype)
    if half is not None:
        document[half] = {"enabled": True}
    return {
        "ds_config.json": json.dumps(document, indent=2) + "\n",
        "README.txt": writing.head.replace("# ", "")
        + (
            "\nCall deepspeed.checkpointing in each layer: it runs again.\n"
            if config.recompute
            else ""
        ),
    }


def write_accelerate(writing: ExportWriting) -> Files:
    """`accelerate.yaml`, for 'accelerate launch --config_file', and the same for a Trainer."""
    sharded = writing.config.zero > 0
    imports = "from accelerate.parallelism_config import ParallelismConfig\n" if sharded else ""
    arguments = "\n".join(f"        {line}" for line in _arguments(writing))
    return {
        "accelerate.yaml": writing.head + "\n".join(_accelerate(writing)) + "\n",
        "training_arguments.py": ARGUMENTS.format(
            head=writing.head, imports=imports.rstrip(), arguments=arguments
        ),
    }


def _arguments(writing: ExportWriting) -> Iterator[str]:
    """Of `TrainingArguments`; the batch is what a device computes at once."""
    config = writing.config
    each = samples_of(writing) // config.data
    half = HALF.get(writing.graph.parameters[0].tensor.dtype)
    yield f"per_device_train_batch_size={each // config.micro_batches},"
    yield f"gradient_accumulation_steps={config.micro_batches},"
    yield f'optim="{OPTIMIZERS[config.optimizer]}",'
    if config.optimizer == "momentum":
        yield 'optim_args="momentum=0.9",'
    if half is not None and config.mixed:
        yield f"{half}=True,"
    if not config.zero:
        yield f"gradient_checkpointing={config.recompute},"
        return
    yield "fsdp=True,"
    yield "fsdp_config={"
    yield '    "version": 2,'
    yield f'    "reshard_after_forward": {config.zero == 3},'
    yield '    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",'
    yield f'    "activation_checkpointing": {config.recompute},'
    yield '    "state_dict_type": "SHARDED_STATE_DICT",'
    yield "},"
    yield "parallelism_config=ParallelismConfig("
    yield from (f"    {name}={degree}," for name, degree in _degrees(config).items())
    yield "),"


def _degrees(config: ParallelConfig) -> dict[str, int]:
    """What Accelerate calls degrees."""
    return {
        "dp_replicate_size": config.replicas,
        "dp_shard_size": config.data // config.replicas,
        "tp_size": config.tensor,
        "cp_size": config.context,
    }


def _accelerate(writing: ExportWriting) -> Iterator[str]:
    config, cluster = writing.config, writing.plan.cluster
    sharded = config.zero > 0
    yield "# On each machine: accelerate launch --config_file accelerate.yaml --machine_rank K"
    yield "#   --main_process_ip HOST --main_process_port 29500 train.py"
    if config.micro_batches > 1:
        yield f"# Accelerator(gradient_accumulation_steps={config.micro_batches}) in your script."
    yield "compute_environment: LOCAL_MACHINE"
    yield f"distributed_type: {'FSDP' if sharded else 'MULTI_GPU'}"
    yield f"num_machines: {cluster.devices // gpus_of(cluster)}"
    yield f"num_processes: {cluster.devices}"
    yield "machine_rank: 0"
    yield "main_training_function: main"
    dtype = writing.graph.parameters[0].tensor.dtype
    if dtype in HALF and not config.mixed:
        yield f"# Build the model in {dtype}: mixed precision would keep float32 parameters."
    # Quoted: in YAML no is a boolean, and Accelerate wants a word.
    yield f'mixed_precision: "{HALF.get(dtype, "no") if config.mixed else "no"}"'
    if sharded:
        yield "fsdp_config:"
        yield "  fsdp_version: 2"
        yield f"  fsdp_reshard_after_forward: {str(config.zero == 3).lower()}"
        yield "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"
        yield f"  fsdp_activation_checkpointing: {str(config.recompute).lower()}"
        yield "  fsdp_state_dict_type: SHARDED_STATE_DICT"
        yield "parallelism_config:"
        for name, degree in _degrees(config).items():
            yield f"  parallelism_config_{name}: {degree}"
