"""A script of stock PyTorch. Enters: `Writing`. Leaves: `train_plan.py`, which a person can keep.

mesh            ranks permuted so that each axis has the machine's factors that the plan gives it
tensor          parallelize_module with ColwiseParallel and RowwiseParallel; DTensors in between
data            fully_shard for each layer: ZeRO 3, 2 (parameters stay), 0 (shards of one rank)
pipeline        torch.distributed.pipelining; a stage runs the model's own forward
recomputation   checkpoint_wrapper for each layer
"""

from __future__ import annotations

from pathlib import Path

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.config import Axis, ParallelConfig
from meshwright.export import pytorch_text as text
from meshwright.export.exported import Files, Writing
from meshwright.export.modules import (
    Style,
    ends_of,
    layer_modules,
    pattern,
    stages_of,
    tensor_styles,
    tied,
)
from meshwright.graph.batch import samples_of
from meshwright.graph.model import OperatorGraph
from meshwright.sharding.layout import factors

NAME = "train_plan.py"

OUTERMOST_FIRST: tuple[Axis, ...] = ("pipeline", "data", "tensor")

STYLES: dict[Style, str] = {
    "columns": "ColwiseParallel(use_local_output=False)",
    "rows": "RowwiseParallel()",
    "table": "RowwiseParallel(input_layouts=Replicate())",
    "head": "ColwiseParallel(output_layouts=Replicate())",
}

OPTIMIZERS = {
    "adam": "torch.optim.AdamW({}, lr=1e-4)",
    "sgd": "torch.optim.SGD({}, lr=1e-2)",
    "momentum": "torch.optim.SGD({}, lr=1e-2, momentum=0.9)",
}

SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
}

WORDS = {
    0: "gradients are averaged over replicas (ZeRO 0)",
    2: "optimizer state and gradients are sharded, parameters stay after the forward pass (ZeRO 2)",
    3: "parameters are sharded and gathered for each use (ZeRO 3)",
}


def write_pytorch(own: Writing) -> Files:
    """The script."""
    config = own.config
    pieces = [
        own.head.rstrip(),
        _imports(own),
        _constants(own),
        _build(own),
        _mesh(own),
        text.MATCHED if config.tensor > 1 or _sharded(config) else "",
        _tensor(own) + text.COMPUTING if config.tensor > 1 else "",
        text.RECOMPUTE if config.recompute else "",
        _shard(own) if _sharded(config) else "",
        text.STAGE if config.pipeline > 1 else "",
        text.BATCH,
        _training(own),
        text.CHECKPOINT_PIPELINE if config.pipeline > 1 else text.CHECKPOINT,
        text.MAIN.format(
            contexts="computing(device)" if config.tensor > 1 else "torch.enable_grad()"
        ),
    ]
    return {
        NAME: "\n".join(piece.strip("\n") + "\n\n" for piece in pieces if piece).rstrip() + "\n"
    }


def _sharded(config: ParallelConfig) -> bool:
    return config.data > 1 or config.mixed


def _imports(own: Writing) -> str:
    config = own.config
    lines = ["from torch.distributed.device_mesh import DeviceMesh"]
    standard = ["import argparse", "import os"]
    if config.pipeline > 1:
        kind = SCHEDULES[config.options.schedule]
        lines += [
            "from torch import nn",
            f"from torch.distributed.pipelining import PipelineStage, {kind}",
        ]
    if _sharded(config):
        more = ", MixedPrecisionPolicy" if config.mixed else ""
        lines.append(f"from torch.distributed.fsdp import fully_shard{more}")
    lines.append("from torch.distributed import checkpoint")
    names = "get_state_dict, set_state_dict"
    if config.pipeline > 1:
        names = "StateDictOptions, get_state_dict, set_model_state_dict"
    lines.append(f"from torch.distributed.checkpoint.state_dict import {names}")
    if config.recompute:
        module = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
        lines.append(f"from {module} import checkpoint_wrapper")
    if config.tensor > 1:
        replicated = "replicated" in tensor_styles(own.written, own.taken["tensor"]).styles.values()
        distribute = ", distribute_module" if replicated else ""
        lines += [
            f"from torch.distributed.tensor import Replicate{distribute}",
            "from torch.distributed.tensor.experimental import implicit_replication",
            "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel",
            "from torch.distributed.tensor.parallel import parallelize_module",
            "from torch.nn.attention import SDPBackend, sdpa_kernel",
        ]
    standard += ["import sys"] if _file(own.plan.model) else []
    standard += ["import copy"] if config.pipeline > 1 else []
    standard = sorted(standard)
    standard += ["from contextlib import contextmanager"] if config.tensor > 1 else []
    return text.IMPORTS.format(standard="\n".join(standard), imports="\n".join(sorted(lines)))


def _samples(own: Writing) -> int:
    samples = samples_of(own.graph)
    if samples is None:
        raise InputError(
            f"the inputs of {own.graph.name!r} do not tell how many samples a step has",
            "give every input its samples as the first dim",
        )
    return samples


def _constants(own: Writing) -> str:
    config = own.config
    replicate, shard = (config.data, 1) if config.zero == 0 else (1, config.data)
    lines = [
        "PIPELINE, REPLICATE, SHARD, TENSOR = "
        f"{config.pipeline}, {replicate}, {shard}, {config.tensor}",
        f"MICRO_BATCHES = {config.micro_batches}",
        f"SAMPLES = {_samples(own)}  # of all ranks in a step",
        "OWN_SAMPLES = SAMPLES // (REPLICATE * SHARD)",
    ]
    among = layer_modules(own.graph)
    if config.pipeline > 1:
        ends = ends_of(own.graph, among)
        lines += [
            f"LAYERS = {_names(among)}",
            f"STAGES = {stages_of(own.graph, config)!r}",
            f"BEFORE = {ends.before!r}",
            f"AFTER = {ends.behind!r}",
        ]
    elif config.recompute:
        lines.append(f"LAYERS = {_names(among)}")
    elif _sharded(config):
        lines.append(f"LAYERS = {tuple(dict.fromkeys(pattern(name, among) for name in among))!r}")
    return "\n".join(lines)


def _names(among: tuple[str, ...]) -> str:
    """The layers, in short."""
    stems = {name.rpartition(".")[0] for name in among}
    if len(stems) == 1 and among == tuple(f"{min(stems)}.{n}" for n in range(len(among))):
        return f'tuple(f"{min(stems)}.{{n}}" for n in range({len(among)}))'
    return repr(among)


def _file(source: str) -> Path | None:
    """The file of a user's function."""
    name = source.partition("?")[0].rpartition(":")[0]
    return Path(name) if name.endswith(".py") else None


def _build(own: Writing) -> str:
    source = own.plan.model
    plain, _, options = source.partition("?")
    module, _, function = plain.rpartition(":")
    if not module or module in ("zoo", "hf"):
        return text.BUILD_KNOWN.format(source=source, batch=own.plan.batch)
    arguments = [part for part in options.split("&") if part]
    if own.plan.batch is not None:
        arguments.append(f"batch={own.plan.batch}")
    file = _file(source)
    path = "" if file is None else f"    sys.path.insert(0, {str(file.resolve().parent)!r})\n"
    return text.BUILD_OWN.format(
        path=path,
        module=module if file is None else file.stem,
        function=function,
        arguments=", ".join(arguments),
    )


def _mesh(own: Writing) -> str:
    cluster = own.plan.cluster
    machine = factors(cluster)
    order = [number for axis in OUTERMOST_FIRST for number in own.taken[axis]]
    words = " x ".join(f"{cluster.levels[level].name} {size}" for level, size in machine)
    sizes = tuple(size for _, size in machine) or (1,)
    return text.MESH.format(factors=words, sizes=sizes, order=tuple(order) or (0,))


def _tensor(own: Writing) -> str:
    found = tensor_styles(own.written, own.taken["tensor"])
    styles = [
        f'        "{name}": {STYLES[style]},'
        for name, style in found.styles.items()
        if style != "replicated"
    ]
    copies = tuple(name for name, style in found.styles.items() if style == "replicated")
    ties = tied(own.graph)
    return text.TENSOR.format(
        styles="\n".join(styles),
        replicated=text.REPLICATED.format(patterns=copies) if copies else "",
        tied=text.TIED.format(names=ties) if ties else "",
    )


def _shard(own: Writing) -> str:
    config = own.config
    policy = ""
    if config.mixed:
        dtype = own.graph.parameters[0].tensor.dtype
        policy = (
            f', "mp_policy": MixedPrecisionPolicy(param_dtype=torch.{dtype}, '
            "reduce_dtype=torch.float32)"
        )
    axes = '("replicate", "shard")' if config.zero == 0 else '"shard"'
    return text.SHARD.format(
        words=WORDS[config.zero], axes=axes, reshard=config.zero == 3, policy=policy
    ).replace('mesh[("replicate", "shard")]', 'mesh["replicate", "shard"]')


def _training(own: Writing) -> str:
    config = own.config
    pipeline = config.pipeline > 1
    model, whole, pad = ("model_part", "own", " " * 12) if pipeline else ("model", "model", " " * 8)
    layout = ""
    if config.tensor > 1:
        layout += f"{pad}parallelize({model}, self.mesh)\n"
    if config.recompute:
        layout += f"{pad}recompute({model})\n"
    shard = f"{pad}shard({whole}, self.mesh)\n" if _sharded(config) else ""
    optimizer = OPTIMIZERS[config.optimizer].format(
        "own_parameters" if pipeline else "model.parameters()"
    )
    dtype = "torch.float32" if config.mixed else f"torch.{_dtype(own.graph)}"
    if pipeline:
        return text.TRAIN_PIPELINE.format(
            layout=layout, shard=shard, optimizer=optimizer, dtype=dtype,
            schedule=SCHEDULES[config.options.schedule],
            given="stages" if config.chunks > 1 else "stages[0]",
        )  # fmt: skip
    sync = ""
    if _sharded(config) and config.micro_batches > 1:
        sync = " " * 12 + "self.model.set_requires_gradient_sync(number == MICRO_BATCHES - 1)\n"
    return text.TRAIN.format(
        layout=layout, shard=shard, optimizer=optimizer, dtype=dtype, sync=sync
    )


def _dtype(graph: OperatorGraph) -> str:
    return graph.parameters[0].tensor.dtype
