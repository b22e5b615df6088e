"""The page about exporting: the script that it says to start trains as one device does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.export.exported import TARGETS
from meshwright.export.rank_files import check_script
from meshwright.plan.file import save_plan
from support.pages import DOCS, commands, printed_by
from support.typed import typed

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("config", "degrees"),
    [
        (ParallelConfig(tensor=2, sequence=True), "1, 1, 1, 2"),
        (ParallelConfig(data=2, pipeline=2, zero=3, micro_batches=2), "2, 1, 2, 1"),
    ],
    ids=str,
)
def test_the_exported_script_trains_as_one_device_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: ParallelConfig, degrees: str
) -> None:
    """Tensor with sequence parallelism, and FSDP in a pipeline; the check at start included."""
    _, export, start = commands("exporting.md")[:3]
    model, laptop = "zoo:llama3-8b/tiny", Cluster.named("laptop", process=config.devices)
    plan = configured(load_model(model, 16).graph, laptop, config)
    save_plan(replace(plan, model=model, batch=16), tmp_path / "plan.json")
    printed_by(export, tmp_path)
    script = tmp_path / "job" / "train_plan.py"
    assert f"TENSOR = {degrees}" in script.read_text()
    start = start.replace("nproc_per_node 2", f"nproc_per_node {config.devices}")
    printed = printed_by(f"{start} --save checkpoint", tmp_path)
    losses = [
        float(figure) for figure in re.findall(r"^step \d: loss (\S+)$", printed, re.MULTILINE)
    ]
    monkeypatch.syspath_prepend(str(tmp_path / "job"))
    spec = importlib.util.spec_from_file_location("train_plan", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    with module.without_weights():
        _, inputs, named, loss, targets = module.build()
    torch.manual_seed(0)
    alone = module.build()[0]
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-4)
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        value = loss(alone(*inputs, **named), *targets)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert losses == pytest.approx(values, abs=2e-5)
    dcp_to_torch_save(tmp_path / "checkpoint", tmp_path / "whole.pt")
    saved = torch.load(tmp_path / "whole.pt")["model"]
    known = dict(alone.named_parameters())
    assert saved.keys() == known.keys()
    assert all(
        torch.allclose(saved[name], parameter, atol=1e-5) for name, parameter in known.items()
    )


TINY = "zoo:llama3-8b/tiny?layers=4&heads=8&key_value_heads=4&sequence=16"
"""Stands for the page's model in commands that are run."""


def section(name: str) -> str:
    """What stands under a heading of the page."""
    text = (DOCS / "exporting.md").read_text()
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def shown(command: str) -> str:
    """A command of the page with a tiny model and a short search."""
    command = re.sub(r"zoo:llama3-8b(?=\s)", TINY, command)
    return f"{command} --budget 200" if command.startswith("meshwright plan") else command


def test_every_target_is_written_by_the_commands_that_the_page_shows(tmp_path: Path) -> None:
    """And `check` says the step of the export."""
    typed_here = [
        shown(words)
        for name in ("Megatron-LM, torchtitan", "JAX, DeepSpeed, Accelerate")
        for words in re.findall(r"^(meshwright .*?)(?: +#.*)?$", section(name), re.MULTILINE)
    ]
    printed = {words: printed_by(words, tmp_path) for words in typed_here}
    targets = {match[1] for words in printed if (match := re.search(r"--to (\w+)", words))}
    assert targets == TARGETS.keys() - {"pytorch"}
    written = {file.name for file in (tmp_path / "job").iterdir()}
    assert written >= {
        "pretrain.sh", "job.toml", "meshwright_plan.py", "mesh_plan.py", "ds_config.json",
        "accelerate.yaml", "training_arguments.py", "check_ranks.py",
    }  # fmt: skip
    (checked,) = (text for words, text in printed.items() if "meshwright check" in words)
    step = re.search(r"^Step \(predicted\): (.*?) = ", checked, re.MULTILINE)
    script = (tmp_path / "job" / "pretrain.sh").read_text()
    assert step is not None
    assert f"# step:    {step[1]} predicted (fused kernels, gradients in float32)" in script
    subprocess.run(["bash", "-n", tmp_path / "job" / "pretrain.sh"], check=True)


def test_ranks_in_order_pass_the_check(tmp_path: Path) -> None:
    (command,) = (
        line for line in commands("exporting.md") if "--standalone" in line and "check" in line
    )
    (tmp_path / "job").mkdir()
    two = Cluster.named("laptop", process=2)
    (tmp_path / "job" / "check_ranks.py").write_text(check_script(range(2), two))
    printed_by(command, tmp_path)


def test_what_the_page_says_is_refused_is(tmp_path: Path) -> None:
    plan = configured(load_model(TINY, 16).graph, Cluster.named("laptop"), ParallelConfig(data=4))
    save_plan(plan, tmp_path / "plan.json")
    refused = re.findall(
        r"^\$ meshwright (.*)\n(meshwright: .*)$", section("What is refused"), re.M
    )
    assert len(refused) > 1
    for words, said in refused:
        done = typed(*words.split(), folder=tmp_path)
        assert done.returncode != 0
        assert done.stderr.split() == said.split()


def test_another_machine_is_refused_at_start(tmp_path: Path) -> None:
    """One rank where 16 are planned for."""
    check = tmp_path / "check_ranks.py"
    check.write_text(check_script(range(16), Cluster.named("dgx-h100", node=2)))
    environment = {
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
        "PATH": "", "HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(check)],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "there are 1 ranks, and the plan is for 16" in done.stdout
