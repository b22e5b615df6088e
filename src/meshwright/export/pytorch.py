"""PyTorch export: a script with DTensor TP, FSDP2 and torch.distributed.pipelining. Enters:
`ExportWriting`. Leaves: `train_plan.py`, which a person can keep.

mesh            ranks permuted so that each axis has the machine's factors that the plan gives it
tensor          parallelize_module with ColwiseParallel and RowwiseParallel; DTensors in between
data            fully_shard for each layer: ZeRO 3, 2 (parameters stay), 0 (shards of one rank)
pipeline        torch.distributed.pipelining; a stage runs the model's own forward
recomputation   checkpoint_wrapper for each layer
"""

from __future__ import annotations

import math
import textwrap

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.facts import layer_starts
from meshwright.baselines.degrees.parallel_config import Axis, ParallelConfig
from meshwright.capture.standalone import Standalone, standalone
from meshwright.export import pytorch_fsdp_steps as fsdp_steps
from meshwright.export import pytorch_init_template as init_template
from meshwright.export import pytorch_template as text
from meshwright.export import pytorch_tp_template as tp_template
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.modules import (
    Style,
    layer_modules,
    modules_outside_layers,
    pattern,
    stages_of,
    tensor_styles,
    tied,
)
from meshwright.export.projection import sharded_factors
from meshwright.export.pytorch_fsdp_steps import DataSteps, fsdp_collective_steps
from meshwright.export.rank_files import gpus_of
from meshwright.graph.batch import samples_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.layout import factors

NAME = "train_plan.py"

OUTERMOST_FIRST: tuple[Axis, ...] = ("pipeline", "data", "tensor")

STYLES: dict[Style, str] = {
    "columns": "ColwiseParallel({into}use_local_output=False)",
    "rows": "RowwiseParallel({out}use_local_output=False)",
    "table": "RowwiseParallel(input_layouts=Replicate(), {out}use_local_output=False)",
    "flat_table": "RowwiseParallel(input_layouts=Replicate(), use_local_output=False)",
    "head": "ColwiseParallel({into}output_layouts=Replicate())",
}
"""Logits are plain tensors, so that losses of any kind can be computed; what is before them is a
DTensor. With sequence parallelism hidden states are cut along positions between layers."""

TABLE_STYLES = ("table", "flat_table")

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


def write_pytorch(writing: ExportWriting) -> Files:
    """The script."""
    config = writing.config
    pieces = [
        writing.head.rstrip(),
        _imports(writing),
        _constants(writing),
        _build(writing),
        init_template.EMPTY if _model(writing).empty else "",
        init_template.WEIGHTS,
        _mesh(writing),
        text.MATCHED if config.tensor > 1 or (_sharded(config) and config.pipeline == 1) else "",
        *(_tensor(writing) if config.tensor > 1 else ()),
        text.RECOMPUTE if config.recompute else "",
        fsdp_steps.TEXT if _in_steps(writing) else "",
        _shard(writing) if _sharded(config) else "",
        _stage(config) if config.pipeline > 1 else "",
        text.BATCH,
        _training(writing),
        text.CHECKPOINT_PIPELINE if config.pipeline > 1 else text.CHECKPOINT,
        _machine(writing),
        text.MAIN.format(
            contexts="computing(device)" if config.tensor > 1 else "torch.enable_grad()",
            compile=text.COMPILE if _compiles(config) else "",
            compiled=", compiled=asked.compile" if _compiles(config) else "",
        ),
    ]
    script = "\n".join(piece.strip("\n") + "\n\n" for piece in pieces if piece).rstrip() + "\n"
    return {NAME: script, **_model(writing).files}


def _sharded(config: ParallelConfig) -> bool:
    return config.data > 1 or config.mixed


def _compiles(config: ParallelConfig) -> bool:
    """Whether layers can be compiled: DTensors and stages were never tried with it."""
    return config.tensor == config.pipeline == 1 and _sharded(config)


def _imports(writing: ExportWriting) -> str:
    config = writing.config
    lines = ["from torch.distributed.device_mesh import DeviceMesh"]
    standard = ["import argparse", "import os", "import socket"]
    if config.pipeline > 1:
        kind = SCHEDULES[config.options.schedule]
        lines.append(f"from torch.distributed.pipelining import PipelineStage, {kind}")
    if config.pipeline > 1 or config.tensor > 1 or _model(writing).empty:
        lines.append("from torch import nn")
    if _sharded(config):
        fsdp = ["FSDPModule"] if _in_steps(writing) else []
        fsdp += ["MixedPrecisionPolicy"] if config.mixed else []
        words = ", ".join([*fsdp, "fully_shard"])
        lines.append(f"from torch.distributed.fsdp import {words}")
    lines.append("from torch.distributed import checkpoint")
    names = "get_state_dict, set_state_dict"
    if config.pipeline > 1:
        names = "StateDictOptions, get_state_dict, set_model_state_dict"
    lines.append(f"from torch.distributed.checkpoint.state_dict import {names}")
    if config.recompute:
        module = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
        lines.append(f"from {module} import checkpoint_wrapper")
    if config.tensor > 1:
        styles = tensor_styles(writing.written, writing.taken["tensor"])
        shard = ", Shard" if config.sequence else ""
        lines += [
            f"from torch.distributed.tensor import DTensor, Replicate{shard}, distribute_tensor",
            "from torch.distributed.tensor.experimental import implicit_replication",
            "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel",
            "from torch.distributed.tensor.parallel import parallelize_module",
            "from torch.nn.attention import SDPBackend, sdpa_kernel",
        ]
        lines += ["from torch.utils._pytree import tree_map"] if styles.local else []
    else:
        lines.append("from torch.distributed.tensor import DTensor")
    standard += ["import copy"] if config.pipeline > 1 else []
    standard += ["import math"] if _in_steps(writing) else []
    standard = sorted(standard)
    if config.tensor > 1 or _model(writing).empty:
        standard.append("from contextlib import contextmanager")
    return text.IMPORTS.format(standard="\n".join(standard), imports="\n".join(sorted(lines)))


def _samples(writing: ExportWriting) -> int:
    samples = samples_of(writing.graph)
    if samples is None:
        raise InputError(
            f"the inputs of {writing.graph.name!r} do not tell how many samples a step has",
            "give every input its samples as the first dim",
        )
    return samples


def _constants(writing: ExportWriting) -> str:
    config = writing.config
    shard = math.prod(factors(writing.plan.cluster)[f].size for f in _sharded_factors(writing))
    lines = [
        "PIPELINE, REPLICATE, SHARD, TENSOR = "
        f"{config.pipeline}, {config.data // shard}, {shard}, {config.tensor}",
        f"MICRO_BATCHES = {config.micro_batches}",
        f"SAMPLES = {_samples(writing)}  # of all ranks in a step",
        "OWN_SAMPLES = SAMPLES // (REPLICATE * SHARD)",
    ]
    if _in_steps(writing):
        machine, steps = factors(writing.plan.cluster), _data_steps(writing)
        held = [machine[factor] for factor in _sharded_factors(writing)]
        levels = writing.plan.cluster.levels
        lines.append(
            fsdp_steps.CONSTANTS.format(
                sizes=tuple(size for _, size in held),
                words=" x ".join(f"{levels[level].name} {size}" for level, size in held),
                scatter=steps.scatter,
                gather=steps.gather,
            )
        )
    among = layer_modules(writing.graph)
    if config.pipeline > 1:
        ends = modules_outside_layers(writing.graph, among)
        lines += [
            f"LAYERS = {_names(among)}",
            f"STAGES = {stages_of(writing.graph, config)!r}",
            f"BEFORE = {ends.before!r}",
            f"AFTER = {ends.behind!r}",
        ]
    elif config.recompute:
        lines.append(f"LAYERS = {_names(among)}")
    elif _sharded(config):
        lines.append(f"LAYERS = {tuple(dict.fromkeys(pattern(name, among) for name in among))!r}")
    if config.recompute:
        again = _recomputed(writing, among)
        lines.append(f"RECOMPUTED = {'LAYERS' if again == among else repr(again)}")
    return "\n".join(lines)


def _recomputed(writing: ExportWriting, among: tuple[str, ...]) -> tuple[str, ...]:
    """The layers that run again in the backward pass."""
    again = writing.written.options.runs_again(writing.graph)
    starts = layer_starts(writing.graph) if among else ()
    return tuple(
        name
        for name, start in zip(among, starts, strict=True)
        if writing.graph.operators[start].name in again
    )


def _names(among: tuple[str, ...]) -> str:
    """The layers, in short."""
    stems = {name.rpartition(".")[0] for name in among}
    if len(stems) == 1 and among == tuple(f"{min(stems)}.{n}" for n in range(len(among))):
        return f'tuple(f"{min(stems)}.{{n}}" for n in range({len(among)}))'
    return repr(among)


def _model(writing: ExportWriting) -> Standalone:
    """The model's code, without Meshwright."""
    if not writing.plan.model:
        return Standalone(text.BUILD_NOTHING.strip(), {}, empty=True)
    return standalone(writing.plan.model, writing.plan.batch)


def _build(writing: ExportWriting) -> str:
    words = "Random data stands for your own: give batches to Training.step."
    body = textwrap.indent(_model(writing).body, " " * 4)
    return text.BUILD.format(words=words, body=body)


def _machine(writing: ExportWriting) -> str:
    cluster = writing.plan.cluster
    levels = " x ".join(f"{level.cardinality} {level.name}" for level in cluster.levels)
    gpus = gpus_of(cluster)
    return text.MACHINE.format(
        words=f"{cluster.name} ({levels})",
        memory=int(cluster.device.memory),
        gpus=gpus,
        hosts=cluster.devices // gpus,
    )


def _stage(config: ParallelConfig) -> str:
    if config.tensor == 1:
        return text.STAGE.format(handed="", enter="hidden", leave="self.leaving")
    return text.STAGE.format(
        handed=text.HANDED.format(hidden="Shard(1)" if config.sequence else "Replicate()"),
        enter='None if self.first else DTensor.from_local(hidden, self.mesh["tensor"], [HIDDEN])',
        leave="self.leaving.redistribute(placements=[HIDDEN]).to_local()",
    )


def _mesh(writing: ExportWriting) -> str:
    cluster = writing.plan.cluster
    machine = factors(cluster)
    order = [number for axis in OUTERMOST_FIRST for number in writing.taken[axis]]
    words = " x ".join(f"{cluster.levels[level].name} {size}" for level, size in machine)
    sizes = tuple(size for _, size in machine) or (1,)
    return text.MESH.format(factors=words, sizes=sizes, order=tuple(order) or (0,))


def _tensor(writing: ExportWriting) -> tuple[str, ...]:
    module_styles, config = tensor_styles(writing.written, writing.taken["tensor"]), writing.config
    into, out = ("input_layouts=Shard(1), ", "output_layouts=Shard(1), ")
    layouts = {"into": into, "out": out} if config.sequence else {"into": "", "out": ""}
    styles = [
        f'        "{name}": {STYLES[style].format(**layouts)},'
        for name, style in module_styles.styles.items()
    ]
    ties, gathered = tied(writing.graph), module_styles.gathered
    tables = tuple(name for name, style in module_styles.styles.items() if style in TABLE_STYLES)
    piece = tp_template.TENSOR.format(
        sequence="; hidden states are cut along positions between them" if config.sequence else "",
        styles="\n".join(styles),
        gathered=tp_template.GATHERED.format(patterns=gathered) if gathered else "",
        settled=tp_template.SETTLED.format(patterns=tables) if tables else "",
        locally=tp_template.LOCALLY.format(patterns=module_styles.local)
        if module_styles.local
        else "",
        skipped=tp_template.SKIPPED if module_styles.local else "",
        tied=tp_template.TIED.format(names=ties) if ties else "",
    )
    uses_whole = gathered or module_styles.local
    return (
        tp_template.WHOLE if uses_whole else "",
        tp_template.SETTLED_FUNCTION if tables else "",
        tp_template.LOCAL if module_styles.local else "",
        piece,
        tp_template.COMPUTING,
    )


def _sharded_factors(writing: ExportWriting) -> tuple[int, ...]:
    return sharded_factors(writing.config, writing.taken, writing.plan.cluster)


def _data_steps(writing: ExportWriting) -> DataSteps:
    return fsdp_collective_steps(writing.plan, _sharded_factors(writing), writing.config.zero)


def _in_steps(writing: ExportWriting) -> bool:
    """Whether a collective over the data axis has several steps."""
    return any(_data_steps(writing))


def _shard(writing: ExportWriting) -> str:
    config = writing.config
    policy = ""
    if config.mixed:
        dtype = writing.graph.parameters[0].tensor.dtype
        policy = (
            f', "mp_policy": MixedPrecisionPolicy(param_dtype=torch.{dtype}, '
            "reduce_dtype=torch.float32)"
        )
    copied = len(_sharded_factors(writing)) < len(writing.taken["data"])
    axes = '("replicate", "shard")' if copied else '"shard"'
    return text.SHARD.format(
        words=WORDS[config.zero],
        axes=axes,
        reshard=config.zero == 3,
        policy=policy,
        layers=text.LAYERS_OF_STAGE if config.pipeline > 1 else text.LAYERS_OF_MODEL,
        again=text.AGAIN if config.pipeline > 1 and config.zero == 3 else "",
        steps=fsdp_steps.COMMUNICATION if _in_steps(writing) else "",
    ).replace('mesh[("replicate", "shard")]', 'mesh["replicate", "shard"]')


def _training(writing: ExportWriting) -> str:
    config = writing.config
    pipeline = config.pipeline > 1
    model, whole, pad = ("model_part", "own", " " * 12) if pipeline else ("model", "model", " " * 8)
    layout = ""
    if config.tensor > 1:
        layout += f"{pad}parallelize({model}, self.mesh)\n"
    if config.recompute:
        layout += f"{pad}recompute({model})\n"
    shard = f"{pad}shard({whole}, self.mesh)\n" if _sharded(config) else ""
    parameters = "own_parameters" if pipeline else "model.parameters()"
    if config.tensor > 1 and tensor_styles(writing.written, writing.taken["tensor"]).local:
        parameters += ", foreach=False"  # parameters have more than one mesh
    optimizer = OPTIMIZERS[config.optimizer].format(parameters)
    dtype = "torch.float32" if config.mixed else f"torch.{_dtype(writing.graph)}"
    how = init_template.BUILDING if _model(writing).empty else init_template.BUILDING_WHOLE
    building = how.format(loss="loss" if pipeline else "self.loss")
    if pipeline:
        return text.TRAIN_PIPELINE.format(
            layout=layout, shard=shard, optimizer=optimizer, dtype=dtype, building=building,
            schedule=SCHEDULES[config.options.schedule],
            given="stages" if config.chunks > 1 else "stages[0]",
        )  # fmt: skip
    sync = ""
    if _sharded(config) and config.micro_batches > 1 and not config.sync_each:
        sync = " " * 12 + "self.model.set_requires_gradient_sync(number == MICRO_BATCHES - 1)\n"
    return text.TRAIN.format(
        layout=layout, shard=shard, optimizer=optimizer, dtype=dtype, sync=sync,
        building=building,
        argument=", compiled=None" if _compiles(config) else "",
        compiled=text.COMPILED if _compiles(config) else "",
    )  # fmt: skip


def _dtype(graph: OperatorGraph) -> str:
    return graph.parameters[0].tensor.dtype
