"""What a rank of the PyTorch script holds: groups of FSDP, pieces of the model, buffers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.export.pytorch_init_template import WEIGHTS
from meshwright.export.write import exported

MODEL = "zoo:llama3-8b/tiny?layers=4"


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Path]:
    """A folder that modules are imported from, and are forgotten afterwards."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("zoo_")]:
        del sys.modules[name]


def script_of(config: ParallelConfig, folder: Path) -> ModuleType:
    graph = load_model(MODEL, 16).graph
    cluster = Cluster.named("laptop", process=config.devices)
    plan = replace(configured(graph, cluster, config), model=MODEL, batch=16)
    for name, text in exported(plan, graph, "pytorch").files:
        (folder / name).write_text(text)
    spec = importlib.util.spec_from_file_location("train_plan", folder / "train_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training_of(script: Any, rank: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One rank's model as `--load` begins with it; collectives do nothing."""
    build, weights = script.build, []

    def watched() -> Any:
        built = build()
        weights.extend(built[0].parameters())
        return built

    monkeypatch.setattr(script, "build", watched)
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        training = script.Training(torch.device("cpu"), weights=False)
    finally:
        dist.destroy_process_group()
        monkeypatch.undo()
    assert weights
    assert all(weight.is_meta for weight in weights)
    return training


@pytest.mark.parametrize("rank", [0, 3])
def test_layers_of_a_stage_are_groups_of_fsdp(
    rank: int, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeRO 3 gathers a layer at a time, in a pipeline too: two layers, and what is around them."""
    script = script_of(ParallelConfig(data=2, pipeline=2, zero=3, micro_batches=2), beside)
    training = training_of(script, rank, 4, monkeypatch)
    (stage,) = training.parts
    groups = [name for name, module in stage.named_modules() if isinstance(module, FSDPModule)]
    assert groups == ["", *(f"model.{name}" for name in script.STAGES[rank // 2])]


def test_virtual_stages_are_groups_of_their_own(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ParallelConfig(data=2, pipeline=2, chunks=2, zero=2, micro_batches=2, recompute=True)
    training = training_of(script_of(config, beside), 0, 4, monkeypatch)
    groups = [
        sum(isinstance(module, FSDPModule) for module in part.modules()) for part in training.parts
    ]
    assert groups == [2, 2]


@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(data=4, zero=3),
        ParallelConfig(data=2, pipeline=2, zero=3, micro_batches=2),
    ],
    ids=str,
)
def test_ranks_hold_their_pieces_and_no_more(
    config: ParallelConfig, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZeRO 3 all pieces together are the model once; rotary tables are those of one device."""
    script, held = script_of(config, beside), 0
    alone = script.build()[0]
    for rank in range(4):
        training = training_of(script, rank, 4, monkeypatch)
        models = [part.model for part in getattr(training, "parts", ())] or [training.model]
        for model in models:
            held += sum(parameter.to_local().numel() for parameter in model.parameters())
            assert not any(parameter.is_meta for parameter in model.parameters())
            for name, buffer in model.named_buffers():
                assert torch.equal(buffer, alone.get_buffer(name))
    assert held == sum(parameter.numel() for parameter in alone.parameters())
    assert len(list(alone.buffers())) > 1


def test_pieces_that_are_not_equal_are_cut_along_the_tensor_axis_first() -> None:
    """Ten rows on tensor 2 and shard 3: five each, then two, two and one."""
    weights: dict[str, Any] = {"torch": torch, "dist": dist, "DTensor": DTensor}
    exec(WEIGHTS, weights)
    dist.init_process_group("fake", rank=5, world_size=6, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("shard", "tensor"))
        linear = torch.nn.Linear(4, 10, bias=False, device="meta")
        parallelize_module(linear, mesh["tensor"], ColwiseParallel())
        fully_shard(linear, mesh=mesh["shard"])
        whole = torch.arange(40.0).reshape(10, 4)
        weight = linear.weight
        assert isinstance(weight, DTensor)
        piece = weights["piece"](whole, weight)
        assert weight.to_local().shape == piece.shape == (1, 4)
        assert torch.equal(piece, whole[9:])
    finally:
        dist.destroy_process_group()


READING = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        {reading}

    def forward(self, x):
        return self.linear(x)

def build(batch=4):
    return Scaled(), torch.randn(batch, 8), lambda output: output.square().mean()
"""


@pytest.mark.parametrize("reads", [True, False])
def test_a_model_that_reads_its_weights_is_built_whole(reads: bool, tmp_path: Path) -> None:
    reading = "self.scale = self.linear.weight.abs().max().item()" if reads else "pass"
    (tmp_path / "scaled.py").write_text(READING.format(reading=reading))
    source = f"{tmp_path / 'scaled.py'}:build"
    graph = load_model(source, 8).graph
    plan = replace(data_parallel(graph, Cluster.named("laptop")), model=source, batch=8)
    script = dict(exported(plan, graph, "pytorch").files)["train_plan.py"]
    assert ("reads weights while it is built: every rank" in script) == reads
    assert ("with without_weights():" in script) != reads
