"""DeepSpeed and Accelerate export: ds_config.json and accelerate.yaml. Enters: `ExportWriting`.
Leaves: the files that their launchers read. Both say degrees and ZeRO; the training script stays
the user's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from meshwright.export.exported import ExportWriting, Files
from meshwright.export.ranks import gpus_of

HALF = {"bfloat16": "bf16", "float16": "fp16"}
"""What the libraries call 16-bit numbers."""


def samples_of(writing: ExportWriting) -> int:
    """In a step."""
    return min((tensor.dims[0][1] for tensor in writing.graph.inputs if tensor.dims), default=1)


def write_deepspeed(writing: ExportWriting) -> Files:
    """`ds_config.json`; JSON has no comments, so what was planned and lost is beside it."""
    config, samples = writing.config, samples_of(writing)
    each = samples // config.data
    document: dict[str, object] = {
        "train_batch_size": each * config.data,
        "train_micro_batch_size_per_gpu": each // config.micro_batches,
        "gradient_accumulation_steps": config.micro_batches,
        "zero_optimization": {"stage": config.zero, "overlap_comm": config.zero > 0},
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
    """`accelerate.yaml`, for 'accelerate launch --config_file'."""
    return {"accelerate.yaml": writing.head + "\n".join(_accelerate(writing)) + "\n"}


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
        yield f"  parallelism_config_dp_replicate_size: {config.replicas}"
        yield f"  parallelism_config_dp_shard_size: {config.data // config.replicas}"
        yield f"  parallelism_config_tp_size: {config.tensor}"
        yield f"  parallelism_config_cp_size: {config.context}"
