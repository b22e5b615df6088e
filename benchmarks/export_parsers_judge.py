"""Reads exports by the parsers of Megatron-Core and torchtitan; runs in an environment of theirs.

    PYTHON export_parsers_judge.py megatron-core | torchtitan-0.3 | torchtitan-0.2 FOLDER [PATH]

Imports nothing of Meshwright. Prints a JSON line a plan.
"""

# mypy: ignore-errors
from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shlex
import sys
from pathlib import Path


def flags_of(text: str) -> dict[str, object]:
    """The flags of the arrays in a script, as argparse would name them."""
    flags: dict[str, object] = {}
    for body in re.findall(r"^\w+=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL):
        last = None
        for word in shlex.split(body, comments=True):
            if word.startswith("--"):
                last = word[2:].replace("-", "_")
                flags[last] = True
            elif last is not None:
                flags[last] = number(word)
    return flags


def number(word: str) -> int | float | str:
    """What a word says."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


RENAMED = {"num_experts": "num_moe_experts", "norm_epsilon": "layernorm_epsilon"}
"""Flags that are fields of TransformerConfig by another name."""

LAUNCHER = {
    "group_query_attention", "swiglu", "disable_bias_linear", "seq_length", "mock_data",
    "max_position_embeddings", "position_embedding_type", "untie_embeddings_and_output_weights",
    "num_virtual_stages_per_pipeline_rank", "use_tp_pp_dp_mapping", "use_distributed_optimizer",
    "num_distributed_optimizer_instances", "use_megatron_fsdp", "data_parallel_sharding_strategy",
    "overlap_grad_reduce", "overlap_param_gather", "ckpt_format", "micro_batch_size",
    "global_batch_size", "optimizer", "lr", "train_iters", "tokenizer_type", "vocab_size",
    "recompute_activations",
}  # fmt: skip
"""Flags of megatron/training/arguments.py that are no fields."""


def megatron(place: Path, devices: int) -> None:
    """TransformerConfig checks itself; ranks and micro-batches are Megatron-Core's own sums."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
    from megatron.core.parallel_state import RankGenerator
    from megatron.core.transformer.transformer_config import TransformerConfig

    flags = flags_of((place / "pretrain.sh").read_text())
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    names = {name: RENAMED.get(name, name) for name in flags}
    unknown = {name for name in flags if names[name] not in fields} - LAUNCHER
    assert not unknown, f"flags that are not known: {sorted(unknown)}"
    arguments = {names[name]: value for name, value in flags.items() if names[name] in fields}
    arguments["add_bias_linear"] = "disable_bias_linear" not in flags
    arguments["gated_linear_unit"] = "swiglu" in flags
    if "num_virtual_stages_per_pipeline_rank" in flags:
        arguments["virtual_pipeline_model_parallel_size"] = flags[
            "num_virtual_stages_per_pipeline_rank"
        ]
    if arguments.get("pipeline_model_parallel_size", 1) > 1:
        import torch

        arguments["pipeline_dtype"] = torch.bfloat16
    config = TransformerConfig(**arguments)
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    data, rest = divmod(devices, tensor * pipeline * config.context_parallel_size)
    assert rest == 0, f"world size ({devices}) is not divisible"
    order = "tp-cp-ep-pp-dp" if "use_tp_pp_dp_mapping" in flags else "tp-cp-ep-dp-pp"
    ranks = RankGenerator(tensor, 1, data, pipeline, config.context_parallel_size, order)
    assert ranks.world_size == devices
    ConstantNumMicroBatchesCalculator(
        flags["global_batch_size"], flags["micro_batch_size"], data, False, 0
    )
    stages = pipeline * (config.virtual_pipeline_model_parallel_size or 1)
    layout = config.pipeline_model_parallel_layout
    assert layout or config.num_layers % stages == 0, "layers are not divisible by stages"
    count = parameters_of(flags, arguments)
    planned = int((place / "parameters").read_text())
    assert count == planned, f"Megatron-Core's model has {count} parameters, the plan's {planned}"


WHOLE = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
         "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
         "sequence_parallel", "moe_grouped_gemm", "moe_token_dispatcher_type",
         "expert_tensor_parallel_size", "pipeline_model_parallel_layout")  # fmt: skip
"""What cuts a model, or wants a GPU when it is built."""


def parameters_of(flags: dict[str, object], arguments: dict[str, object]) -> int:
    """Of the model that Megatron-Core builds of the flags, whole and without memory."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
        )
        parallel_state.initialize_model_parallel()
    sizes = {name: value for name, value in arguments.items() if name not in WHOLE}
    config = TransformerConfig(**sizes, use_cpu_initialization=True)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    with torch.device("meta"):
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=flags["vocab_size"],
            max_sequence_length=flags["max_position_embeddings"],
            position_embedding_type=flags.get("position_embedding_type", "learned_absolute"),
            share_embeddings_and_output_weights="untie_embeddings_and_output_weights" not in flags,
        )
    return sum(parameter.numel() for parameter in model.parameters())


def dims(config, devices: int, **more: int) -> None:
    """The check of degrees that torchtitan has."""
    from torchtitan.distributed.parallel_dims import ParallelDims

    parallelism = config.parallelism
    ParallelDims(
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=parallelism.expert_parallel_degree,
        world_size=devices,
        **more,
    )


def old_torchtitan(place: Path, devices: int) -> None:
    """Version 0.2: the TOML."""
    from torchtitan.config.manager import ConfigManager

    config = ConfigManager().parse_args(["--job.config_file", str(place / "job.toml")])
    dims(config, devices, etp=1)


def new_torchtitan(place: Path, devices: int) -> None:
    """Version 0.3: the Python function."""
    from torchtitan.config.manager import ConfigManager

    sys.path.insert(0, str(place))
    sys.modules.pop("meshwright_plan", None)
    importlib.invalidate_caches()
    try:
        words = ["--module", "meshwright_plan", "--config", "meshwright_plan"]
        config = ConfigManager().parse_args(words)
        type(config).__post_init__(config)
        dims(config, devices)
    finally:
        sys.path.pop(0)


JUDGES = {
    "megatron-core": ("megatron", megatron),
    "torchtitan-0.3": ("torchtitan", new_torchtitan),
    "torchtitan-0.2": ("torchtitan", old_torchtitan),
}


def main() -> None:
    system, folder, *path = sys.argv[1:]
    sys.path[:0] = path
    target, judge = JUDGES[system]
    for place in sorted(Path(folder).glob(f"*/{target}")):
        try:
            judge(place, int((place / "devices").read_text()))
            said = "accepted"
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps({"plan": place.parent.name, "said": said}), flush=True)


if __name__ == "__main__":
    main()
