"""The pages about running and the tutorial: what they say to type is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import commands, printed_by, scripts

pytestmark = pytest.mark.ranks


def test_the_training_script(tmp_path: Path) -> None:
    scripts("running.md", tmp_path)
    plan = next(command for command in commands("running.md") if "model.py" in command)
    printed_by(plan, tmp_path)
    lines = printed_by("torchrun --standalone --nproc-per-node 2 train.py", tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines[:5]] == [f"step {n}" for n in range(5)]
    assert lines[5] == "the plain model takes its state"


TUTORIAL = [
    # What only tells is run by `test_examples`, which compares what it prints.
    command
    for command in commands("tutorial.md")
    if not command.startswith(("meshwright capture", "meshwright explain"))
]
CALIBRATES = next(n for n, command in enumerate(TUTORIAL) if "--links" in command)
"""Where the tutorial leaves the plan that it made and begins to measure."""


def followed(wanted: list[str], folder: Path) -> dict[str, str]:
    """What each command prints, in a folder with the tutorial's files."""
    scripts("tutorial.md", folder)
    return {command: printed_by(command, folder) for command in wanted}


def test_the_tutorial_from_a_model_to_training(tmp_path: Path) -> None:
    printed = followed(TUTORIAL[:CALIBRATES], tmp_path)
    trained = next(text for command, text in printed.items() if command.startswith("torchrun"))
    losses = [float(line.rpartition(" ")[2]) for line in trained.splitlines()]
    assert len(losses) == 3
    beside = next(text for command, text in printed.items() if "--against-one-device" in command)
    assert "Equal to one device: yes. Plain PyTorch did the same 3 steps in float64" in beside
    assert {"plan.json", "report.html", "classifier.pt"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_the_tutorial_on_a_machine_that_it_measures(tmp_path: Path) -> None:
    followed(TUTORIAL[CALIBRATES:], tmp_path)
    assert {"plan.json", "here.toml", "prices.jsonl"} <= {file.name for file in tmp_path.iterdir()}
