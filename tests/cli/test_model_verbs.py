"""The verbs that read PyTorch models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

from support.typed import typed

MODEL = """
import torch

def build(width=8):
    model = torch.nn.Sequential(torch.nn.Linear(4, int(width)), torch.nn.ReLU())
    return model, (torch.zeros(2, 4),), lambda out: out.sum()

def branching():
    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            if y.sum() > 0:
                return y
            return -y

    return Branch(), (torch.zeros(2, 4),), lambda out: out.sum()
"""


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def test_models_lists_figures(folder: Path) -> None:
    result = meshwright(folder, "models", "mlp", "xdl", "--json")
    figures = {one["name"]: one for one in json.loads(result.stdout)["models"]}
    assert figures["mlp"]["parameters"] == 956_301_312
    assert (
        figures["xdl"]["flops"]
        == figures["xdl"]["forward_flops"] + figures["xdl"]["backward_flops"]
    )
    assert figures["mlp"]["memory_bytes"] > 4 * 4 * 956_301_312


def test_capture_a_users_model_save_it_and_load_it_again(folder: Path) -> None:
    first = meshwright(folder, "capture", "mine.py:build?width=16", "--save", "graph.json")
    assert first.returncode == 0, first.stderr
    assert "80 parameters" in first.stdout
    again = meshwright(folder, "capture", "graph.json")
    assert again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]
    text = meshwright(folder, "capture", "mine.py:build", "--text").stdout
    assert text.startswith("graph build\n")


MISTAKES = [
    (["capture", "mine.py:nothing"], "nothing"),
    (["capture", "missing.py:build"], "there is no file 'missing.py'"),
    (["capture", "zoo:bert"], "did you mean 'bert-large'"),
    (["capture", "mine.py:branching"], "mine.py"),
    (["capture", "mine.py:build", "--batch", "0"], "--batch is 0; give 1 or more."),
    (["capture", "mine.py:build", "--optimizer", "adm"], "did you mean 'adam'"),
    (["capture", "mine.py:build", "--save", "/nowhere/graph.json"], "cannot write"),
    (["calibrate", "mine.py:build", "--out", "p.jsonl", "--device", "gpu"], "--device is 'gpu'"),
    (["calibrate", "mine.py:build", "--out", "p.jsonl", "--budget", "0"], "--budget is 0"),
    (["models", "bert"], "there is no model 'bert' in the zoo"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], words: str) -> None:
    result = meshwright(folder, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("meshwright: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_calibration_goes_on_where_it_stopped(folder: Path) -> None:
    arguments = ("calibrate", "mine.py:build", "--out", "prices.jsonl", "--largest", "2")
    first, second = meshwright(folder, *arguments), meshwright(folder, *arguments)
    assert "0 known before, 0 failed" in first.stdout
    assert second.stdout.startswith("0 calls measured")
    rows = ("--rows", "prices.jsonl", "--cluster", "epyc")
    checked = meshwright(folder, "validate", "operators", *rows)
    assert checked.returncode == 0, checked.stderr


def test_a_missing_torch_is_a_sentence(folder: Path) -> None:
    blocked = "import sys; sys.modules['torch'] = None; import meshwright.__main__"
    listed = [sys.executable, "-c", blocked, "models", "mlp"]
    result = subprocess.run(listed, capture_output=True, text=True, check=False, cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    command = [sys.executable, "-c", blocked, "capture", "zoo:mlp"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith("meshwright: this verb needs PyTorch")
