"""A run by a plan against one device, on ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.plan.plan import Measurement, Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.run.training import TrainingTask, refuse_code_elsewhere, train
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units

WAVES = """
import math
import torch
from torch import nn

class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(4) / 4)
        angles = t[:, None] * frequencies
        return self.out(torch.cat([angles.sin(), angles.cos()], -1)).square().mean()

def build(batch=4):
    return Waves(), (100 * torch.rand(batch),)
"""

STRANGERS = """
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(1234)

class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, text, lengths):
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        return self.out((self.words(text[:, :longest]) * mask[..., None]).sum(1))

def lengths(batch=4):
    inputs = torch.randint(0, 20, (batch, 99)), torch.randint(1, 100, (batch,))
    return Lengths(), inputs, functional.cross_entropy, torch.randint(0, 3, (batch,))

class Aliased(nn.Module):
    def __init__(self):
        super().__init__()
        self.cfg = self.also = {"width": 4}
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x)

def aliased(batch=4):
    inputs = torch.randn(batch, 4)
    return Aliased(), inputs, functional.cross_entropy, torch.randint(0, 3, (batch,))

def synchronised(batch=4):
    model, *rest = aliased(batch)
    return nn.Sequential(nn.SyncBatchNorm(4), model.out), *rest

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            made = self.second(self.first(x).relu())
        return made.float()

def mixed(batch=4):
    return Mixed(), *aliased(batch)[1:]
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "waves.py").write_text(WAVES)
    return f"{tmp_path}/waves.py:build"


def test_whole_numbers_become_real_in_float64_on_both_sides(source: str) -> None:
    """The angles of a sinusoidal embedding: whole numbers times a number of Python."""
    graph = load_model(source, 4).graph
    cluster = Cluster.named("laptop").resized({"process": 2})
    plan = Plan.of("any", graph, cluster, [Layout(("replica",)) for _ in units(graph)])
    task = TrainingTask(plan=plan.changed(batch=4), model=source, steps=1, one_device=True)
    measurement = run_ranks(train, task, ranks=2, timeout=Seconds(600))[0]
    assert isinstance(measurement, Measurement)
    assert measurement.one_device is not None
    assert measurement.one_device.dtype == "float64"
    assert measurement.one_device.loss_error < 1e-14
    assert measurement.one_device.equal


@pytest.mark.parametrize("function", ["lengths", "aliased", "synchronised", "mixed"])
def test_what_is_planned_runs_and_equals_one_device(tmp_path: Path, function: str) -> None:
    """A guarded model whose example is drawn; a dict of two names; a norm over all ranks; a region
    of autocast.
    """
    (tmp_path / "strangers.py").write_text(STRANGERS)
    source = f"{tmp_path}/strangers.py:{function}"
    graph = load_model(source, 4).graph
    cluster = Cluster.named("laptop").resized({"process": 2})
    plan = Plan.of(
        "any",
        graph,
        cluster,
        [Layout(("sample" if "sample" in unit.extents else "replica",)) for unit in units(graph)],
    )
    task = TrainingTask(plan=plan.changed(batch=4), model=source, steps=1, one_device=True)
    measurement = run_ranks(train, task, ranks=2, timeout=Seconds(600))[0]
    assert isinstance(measurement, Measurement)
    assert measurement.one_device is not None
    assert measurement.one_device.dtype == ("bfloat16" if function == "mixed" else "float64")
    assert measurement.one_device.equal


def test_a_plan_runs_no_code_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "here", tmp_path / "there"
    folder.mkdir()
    monkeypatch.chdir(folder)
    refuse_code_elsewhere("zoo:lenet/tiny", elsewhere / "plan.json")
    refuse_code_elsewhere("models/own.py:build", elsewhere / "plan.json")
    refuse_code_elsewhere(f"{elsewhere}/own.py:build", elsewhere / "plan.json")
    with pytest.raises(InputError, match=r"own\.py' run, which is neither below this folder nor"):
        refuse_code_elsewhere("../own.py:build", elsewhere / "plan.json")
