"""The pages about running and the tutorial: what they say to type is typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.typed import typed

pytestmark = pytest.mark.ranks

DOCS = Path(__file__).parents[2] / "docs"


def scripts(page: str, folder: Path) -> None:
    """The page's Python and TOML files."""
    text = (DOCS / page).read_text()
    for name, content in re.findall(r"```(?:py|toml)\n# ([\w.-]+)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)


def commands(page: str) -> list[str]:
    """What the page says to type, in the order in which it stands there."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^(?:\$ )?((?:meshwright|torchrun) .*)$", text, re.MULTILINE)
    return [re.split(r" [|#]|  +#", line)[0] for line in found]


def printed_by(command: str, folder: Path) -> str:
    """What a command prints on standard output; it must end well."""
    words = command.split()
    environment = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    if words[0] == "meshwright":
        result = typed(*words[1:], folder=folder, **environment)
    else:
        words[0] = str(Path(sys.executable).parent / "torchrun")
        result = subprocess.run(
            words,
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def test_the_training_script(tmp_path: Path) -> None:
    scripts("running.md", tmp_path)
    plan = next(own for own in commands("running.md") if "model.py" in own)
    printed_by(plan, tmp_path)
    lines = printed_by("torchrun --standalone --nproc-per-node 2 train.py", tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines[:5]] == [f"step {n}" for n in range(5)]
    assert lines[5] == "the plain model takes its state"


def test_the_tutorial_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    scripts("tutorial.md", tmp_path)
    printed = {command: printed_by(command, tmp_path) for command in commands("tutorial.md")}
    trained = next(text for command, text in printed.items() if command.startswith("torchrun"))
    losses = [float(line.rpartition(" ")[2]) for line in trained.splitlines()]
    assert len(losses) == 3
    beside = next(text for command, text in printed.items() if "--against-one-device" in command)
    assert "Equal to one device: yes. Plain PyTorch did the same 3 steps in float64" in beside
    assert {"plan.json", "report.html", "classifier.pt", "here.toml", "prices.jsonl"} <= {
        own.name for own in tmp_path.iterdir()
    }
