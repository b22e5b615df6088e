"""Megatron-LM export: command-line flags as a shell script. Enters: a configuration, the model's
sizes. Leaves: `pretrain.sh`, which `meshwright check` reads back.

Names and rules are those of Megatron-LM of 2025 and 2026 (`shared/reference/exports.md` c). Data is
mocked until the user names some: the script is about the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.baselines.degrees.configured import layers_per_virtual_stage
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.cluster import Cluster
from meshwright.configs.changes import settings
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.hyperparameters import Dims, transformer_dims
from meshwright.export.rank_files import gpus_of

HALF = {"bfloat16": "--bf16", "float16": "--fp16"}

SCRIPT = """#!/bin/bash
{head}
# Start it on each node: NODE_RANK and MASTER_ADDR are the launcher's.
# Sizes are read off the model; what does not change a layout is not (--rotary-base, --norm-epsilon,
# --init-method-std): those are Megatron's defaults, unless you add them.
set -euo pipefail
{environment}
MODEL=(
{model}
)
PARALLEL=(
{parallel}
)
TRAINING=(
{training}
)
# Replace by your data: --data-path, --tokenizer-type ...
DATA=(
    --mock-data --tokenizer-type NullTokenizer --vocab-size {vocabulary}
)

torchrun --nnodes {nodes} --nproc_per_node {gpus} --node_rank "${{NODE_RANK:-0}}" \\
    --master_addr "${{MASTER_ADDR:-localhost}}" --master_port "${{MASTER_PORT:-29500}}" \\
    pretrain_gpt.py "${{MODEL[@]}}" "${{PARALLEL[@]}}" "${{TRAINING[@]}}" "${{DATA[@]}}" "$@"
"""


def write_megatron(writing: ExportWriting) -> Files:
    """The script."""
    script = megatron_script(
        writing.config, transformer_dims(writing.graph), writing.plan.cluster, writing.head
    )
    return {"pretrain.sh": script}


def megatron_script(config: ParallelConfig, dims: Dims, cluster: Cluster, head: str) -> str:
    """The flags of a configuration, for a model of these sizes."""
    gpus = gpus_of(cluster)
    fsdp = config.zero > 1
    # With Megatron-FSDP one connection would serialise what it overlaps; tensor and sequence
    # parallelism without it want kernels in the order of their launch.
    one = "" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    return SCRIPT.format(
        head=head.rstrip(),
        environment=one,
        model=_lines(_model(dims)),
        parallel=_lines(_parallel(config, dims)),
        training=_lines(_training(config, dims)),
        vocabulary=dims.vocabulary,
        nodes=cluster.devices // gpus,
        gpus=gpus,
    )


def _lines(flags: Iterable[str]) -> str:
    return "\n".join(f"    {flag}" for flag in flags)


def _model(dims: Dims) -> Iterator[str]:
    facts = dims.facts
    yield f"--num-layers {facts.layers}"
    yield f"--hidden-size {dims.hidden}"
    yield f"--ffn-hidden-size {dims.inner}"
    yield f"--num-attention-heads {facts.heads}"
    if facts.key_value_heads != facts.heads:
        yield f"--group-query-attention --num-query-groups {facts.key_value_heads}"
    if dims.width * facts.heads != dims.hidden:
        yield f"--kv-channels {dims.width}"
    if dims.normed_heads:
        yield "--qk-layernorm"
    yield f"--seq-length {facts.positions} --max-position-embeddings {facts.positions}"
    if dims.gated:
        yield "--swiglu"
    if not dims.centred:
        yield "--normalization RMSNorm"
    before, behind = dims.biased
    if not behind:
        yield "--disable-bias-linear --add-qkv-bias" if before else "--disable-bias-linear"
    hidden, attention = dims.dropout
    yield f"--hidden-dropout {hidden:g} --attention-dropout {attention:g}"
    if not dims.learned_positions:
        yield "--position-embedding-type rope"
    if not dims.tied:
        yield "--untie-embeddings-and-output-weights"
    if facts.experts:
        yield f"--num-experts {facts.experts} --moe-router-topk {dims.chosen} --moe-grouped-gemm"
        yield "--moe-token-dispatcher-type alltoall"


def lost_sizes(dims: Dims) -> Iterator[str]:
    """What the flags of a model's sizes do not say."""
    if dims.looks_ahead:
        yield (
            "attention of positions to later ones: pretrain_gpt.py trains decoders; start "
            "Megatron's program for this model instead"
        )
    usual = "silu" if dims.gated else "gelu"
    if dims.activation not in ("", usual):
        gate = "gated " if dims.gated else ""
        yield f"{gate}{dims.activation}: Megatron's feed-forward layers compute {gate}{usual}"
    if (count := megatron_parameters(dims)) != dims.parameters:
        yield (
            f"the model itself: these flags make one of {count:,} parameters, and it has "
            f"{dims.parameters:,}; write its layers in Megatron-LM, the layout stays"
        )


def megatron_parameters(dims: Dims) -> int:
    """Parameters of the model that the flags make: attention, feed-forward layers or experts with
    their router, two norms a layer and a last one, tables and head.
    """
    facts, hidden = dims.facts, dims.hidden
    before, behind = dims.biased
    norm = 2 if dims.centred else 1
    rows = (facts.heads + 2 * facts.key_value_heads) * dims.width
    attention = hidden * rows + facts.heads * dims.width * hidden
    attention += rows * (before or behind) + hidden * behind
    attention += 2 * norm * dims.width * dims.normed_heads
    up = (1 + dims.gated) * dims.inner
    feed = up * hidden + dims.inner * hidden + (up + hidden) * behind
    if facts.experts:
        feed = facts.experts * (feed + hidden)
    layer = attention + feed + 2 * norm * hidden
    tables = dims.vocabulary * (1 if dims.tied else 2) + facts.positions * dims.learned_positions
    return facts.layers * layer + norm * hidden + tables * hidden


def _parallel(config: ParallelConfig, dims: Dims) -> Iterator[str]:
    flags = settings("megatron", config, dims.facts.samples)
    counts = layers_per_virtual_stage(config, dims.facts.layers)
    if len(set(counts)) > 1:
        flags = tuple(flag for flag in flags if "num-virtual-stages" not in flag)
        yield f'--pipeline-model-parallel-layout "{stage_layout(counts)}"'
    yield from flags
    if config.zero:
        yield "--overlap-grad-reduce"
        yield "--overlap-param-gather"
    if config.zero > 1:
        yield "--ckpt-format fsdp_dtensor"
    if config.folded and config.expert > 1 < config.tensor:
        yield "--expert-tensor-parallel-size 1"


def stage_layout(counts: Iterable[int]) -> str:
    """Megatron's text of stages that are not equal: E the embedding, t a layer, L the loss.

    >>> stage_layout((1, 2, 2, 1))
    'Et*1|t*2|t*2|t*1L'
    """
    return f"E{'|'.join(f't*{count}' for count in counts)}L"


def _training(config: ParallelConfig, dims: Dims) -> Iterator[str]:
    yield f"--global-batch-size {dims.facts.samples}"
    yield f"--optimizer {config.optimizer}"
    if dims.dtype in HALF:
        yield HALF[dims.dtype]
    yield "--lr 1e-4 --train-iters 100"
