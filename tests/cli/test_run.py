"""The verb `run`, on real ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.plan.file import save_plan
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.typed import typed

pytestmark = pytest.mark.ranks

MODEL = "zoo:lenet/tiny"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    graph = load_model(MODEL, 8).graph
    cluster = Cluster.named("laptop").resized({"process": 2})
    layouts = [Layout(("sample" if "sample" in u.extents else "replica",)) for u in units(graph)]
    bare_plan = Plan.of("data parallel", graph, cluster, layouts)
    save_plan(msgspec.structs.replace(bare_plan, model=MODEL), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def called(*words: str) -> subprocess.CompletedProcess[str]:
    return typed("run", *words, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1")


def started(*words: str, starter: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*starter, "-m", "meshwright", "run", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
    )


def test_what_is_measured_stands_beside_the_prediction(plan: Path) -> None:
    result = called(str(plan), "--steps", "2", "--against-one-device", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    one = report["measured"]["one_device"]
    assert len(one["loss"]) == 3
    assert (one["equal"], one["dtype"]) == (True, "float64")
    assert one["loss_error"] < 1e-12
    assert 0 < one["parameter_error"] < 1e-12, "not the same numbers twice"
    assert len(report["measured"]["steps_s"]) == 2
    assert len(report["measured"]["loss"]) == 3
    assert report["measured"]["moved_bytes"] == report["predicted"]["moved_bytes"]
    assert {row["level"] for row in report["measured"]["levels"]} == {"process"}


def test_the_verdict_and_its_exit_code(plan: Path, tmp_path: Path) -> None:
    """A model that computes something else in each process is equal to nothing."""
    (tmp_path / "odd.py").write_text(
        "import time\n"
        "import torch\n"
        "from torch import nn\n"
        "FACTOR = 1.0 + time.time() % 1.0\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return (self.linear(x) * FACTOR).square().mean()\n"
        "def build(batch=8):\n"
        "    return Odd(), torch.randn(batch, 4)\n"
    )
    source = f"{tmp_path}/odd.py:build"
    graph = load_model(source, 8).graph
    cluster = Cluster.named("laptop").resized({"process": 2})
    odd_plan = Plan.of("by hand", graph, cluster, [Layout(("replica",)) for _ in units(graph)])
    save_plan(msgspec.structs.replace(odd_plan, model=source, batch=8), tmp_path / "odd.json")
    result = called(str(tmp_path / "odd.json"), "--steps", "1", "--against-one-device")
    assert result.returncode == 1, result.stderr
    assert "Equal to one device: NO." in result.stdout


def test_under_torchrun(plan: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torchrun is not beside this Python")
    starter = (torchrun, "--standalone", "--nproc-per-node", "2")
    result = started(str(plan), "--steps", "2", "--measure", starter=starter)
    assert result.returncode == 0, result.stderr
    assert "2 steps measured after one to warm up" in result.stdout
    assert "step 2: loss" in result.stderr
    wrong = started(str(plan), starter=(torchrun, "--standalone", "--nproc-per-node", "1"))
    assert "the plan is for 2 devices (2 of cluster 'laptop'), and there are 1 rank" in wrong.stderr


def test_too_little_memory(plan: Path, tmp_path: Path) -> None:
    document = json.loads(plan.read_text())
    document["cluster"]["device"]["memory"] = 2**20
    (tmp_path / "small.json").write_text(json.dumps(document))
    result = called(str(tmp_path / "small.json"))
    assert result.returncode == 2
    assert "a device of cluster 'laptop' has 1 MiB: 63.02 MiB too little; plan for" in result.stderr


def test_a_plan_that_names_no_model(plan: Path, tmp_path: Path) -> None:
    document = json.loads(plan.read_text())
    (tmp_path / "nameless.json").write_text(json.dumps(document | {"model": ""}))
    result = called(str(tmp_path / "nameless.json"))
    assert result.returncode == 2
    assert "does not say which model it is for; name it with --model." in result.stderr


def test_functions_that_are_not_there(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def batches(): return []\n")
    for words, sentence in (
        (("--data", "nowhere.py:batches"), "--data: there is no file 'nowhere.py'"),
        (("--data", f"{tmp_path}/data.py:batch"), "did you mean 'batches'?"),
        (("--model", "nowhere.py:build"), "run where the plan was made, or name the model with"),
    ):
        result = called(str(plan), *words)
        assert (result.returncode, result.stdout) == (2, "")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1


def test_batches_are_in_the_plan_s_dtypes(plan: Path, tmp_path: Path) -> None:
    """Dicts of float64, as NumPy makes them, in the run that is measured and on one device."""
    (tmp_path / "data.py").write_text(
        "import torch\n"
        "def batches():\n"
        "    torch.manual_seed(0)\n"
        "    for _ in range(3):\n"
        "        x = torch.rand(8, 1, 16, 16, dtype=torch.float64)\n"
        "        yield {'x': x, 'targets': torch.zeros(8, dtype=torch.int64)}\n"
    )
    words = ("--data", f"{tmp_path}/data.py:batches", "--against-one-device", "--json")
    result = called(str(plan), *words)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["measured"]["one_device"]["equal"]


def test_batches_of_the_user(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import torch\n"
        "def batches():\n"
        "    for _ in range(3):\n"
        "        yield torch.rand(8, 1, 16, 16), torch.zeros(8, dtype=torch.int64)\n"
    )
    shape = json.loads(plan.read_text())["graph"]["inputs"][0]["dims"]
    assert [size for _, size in shape] == [8, 1, 16, 16], "the data above is of that shape"
    result = called(str(plan), "--data", f"{tmp_path}/data.py:batches", "--steps", "9", "--json")
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["measured"]["steps_s"]) == 2
