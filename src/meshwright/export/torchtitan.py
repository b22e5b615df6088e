"""torchtitan export: a TOML job file and a Python configuration. Enters: a `Fitted` configuration,
the model's sizes. Leaves: `job.toml` for releases up to 0.2, and `meshwright_plan.py` for those
since 0.3, whose runs are Python functions; `meshwright check` reads both back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from meshwright.baselines.degrees.configured import cuts_of
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.configs.changes import settings
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.hyperparameters import Dims, transformer_dims

UNKNOWN = "YOUR_MODEL"
"""torchtitan knows no model of this name, and says so when it starts."""

PYTHON = '''{head}
from torchtitan.models.{module}.config_registry import {function}
from torchtitan.trainer import Trainer
{imports}

def meshwright_plan() -> Trainer.Config:
    """torchrun ... -m torchtitan.train --module meshwright_plan --config meshwright_plan"""
    config = {function}()
{assignments}
    return config
'''

FULL = "from torchtitan.distributed.activation_checkpoint import FullAC\n"


FLAVORS = {
    (6, 256, 16, 16, 768, 2048): ("llama3", "debugmodel"),
    (32, 4096, 32, 8, 14336, 128_256): ("llama3", "8B"),
    (80, 8192, 64, 8, 28672, 128_256): ("llama3", "70B"),
    (126, 16384, 128, 8, 53248, 128_256): ("llama3", "405B"),
}
"""By layers, hidden width, heads of queries, of keys and values, inner width and words."""


def torchtitan_flavor(dims: Dims) -> tuple[str, str] | None:
    """The name and flavor of a model, if it has it."""
    if not dims.gated or dims.facts.experts:
        return None
    facts = dims.facts
    heads = facts.heads, facts.key_value_heads
    return FLAVORS.get((facts.layers, dims.hidden, *heads, dims.inner, dims.vocabulary))


def write_torchtitan(writing: ExportWriting) -> Files:
    """Both forms."""
    dims = transformer_dims(writing.graph)
    arguments = writing.config, dims, torchtitan_flavor(dims), writing.head
    return {
        "job.toml": torchtitan_toml(*arguments),
        "meshwright_plan.py": torchtitan_python(*arguments),
    }


def torchtitan_toml(
    config: ParallelConfig, dims: Dims, model: tuple[str, str] | None, head: str
) -> str:
    """The job's file of a release up to 0.2."""
    name, flavor = model or (UNKNOWN, UNKNOWN)
    sections: dict[str, list[str]] = {"model": [f'name = "{name}"', f'flavor = "{flavor}"']}
    for section, option, value in _settings(config, dims):
        sections.setdefault(section, []).append(f"{option} = {value}")
    written = (f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    return head + "\n" + "\n".join(written)


def torchtitan_python(
    config: ParallelConfig, dims: Dims, model: tuple[str, str] | None, head: str
) -> str:
    """The module of a release since 0.3."""
    name, flavor = model or (UNKNOWN, UNKNOWN)
    lines = []
    for section, option, value in _settings(config, dims):
        if section in ("activation_checkpoint", "optimizer"):
            continue
        lines.append(f"    config.{section}.{option} = {value}")
    policy = "FullAC.Config()" if config.recompute else "None"
    lines.append(f"    config.activation_checkpoint = {policy}")
    if config.pipeline > 1 or config.expert > 1:
        lines.append("    config.training.disable_cuda_graphs = True")
    return PYTHON.format(
        head=head.rstrip(),
        module=name,
        function=f"{name}_{flavor}".lower(),
        imports=FULL if config.recompute else "",
        assignments="\n".join(lines),
    )


def _settings(config: ParallelConfig, dims: Dims) -> Iterator[tuple[str, str, str]]:
    yield "training", "seq_len", str(dims.facts.positions)
    yield from _precision(config, dims)
    for line in settings("torchtitan", config, dims.facts.samples):
        name, _, value = line.partition(" = ")
        section, _, option = name.partition(".")
        yield section, option, value
    if config.pipeline > 1:
        stages, layers = config.pipeline * config.chunks, dims.facts.layers
        cuts = cuts_of(config, layers)
        # A number of layers that does not make so many stages is refused, beside their lists too.
        if not layers % stages:
            yield "parallelism", "pipeline_parallel_layers_per_stage", str(layers // stages)
        yield "parallelism", "pipeline_parallel_first_stage_less_layers", "0"
        yield "parallelism", "pipeline_parallel_last_stage_less_layers", "0"
        if layers % stages or config.stages:
            yield "parallelism", "module_fqns_per_model_part", _parts(cuts)
    yield "optimizer", "name", '"SGD"' if config.optimizer == "sgd" else '"AdamW"'


def _parts(cuts: Sequence[int]) -> str:
    """The modules of each stage."""
    parts = [[f"layers.{n}" for n in range(*ends)] for ends in pairwise(cuts)]
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] += ["norm", "output"]
    return str(parts).replace("'", '"')


def _precision(config: ParallelConfig, dims: Dims) -> Iterator[tuple[str, str, str]]:
    """16-bit parameters with float32 copies are FSDP's mixed precision; without copies all is 16
    bits.
    """
    half = dims.dtype == "bfloat16"
    yield "training", "dtype", '"bfloat16"' if half and not config.mixed else '"float32"'
    yield "training", "mixed_precision_param", '"bfloat16"' if half else '"float32"'
