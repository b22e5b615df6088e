"""The example of every help text works as pasted, in an empty folder.

An example may read what the example of another verb writes; those run first. That of `demo` takes
minutes, and is run with smaller budgets in `test_demo`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli.examples import example_of, verbs
from meshwright.cli.main import command
from support.typed import program_in

EXAMPLES = {path: example_of(verb) for path, verb in verbs(command(), "meshwright")}

FIRST = ("meshwright plan", "meshwright compare", "meshwright rules generate")
"""Their examples write files that others read."""


def pasted(example: str, folder: Path, program: Path) -> subprocess.CompletedProcess[str]:
    words = f"{program}{os.pathsep}{os.environ['PATH']}"
    # Numbers of threads are those of one rank of several on a small machine.
    environment = os.environ | {"PATH": words, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        example, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program."""
    folder = tmp_path_factory.mktemp("bin")
    program_in(folder)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Path:
    """What the first examples write."""
    folder = tmp_path_factory.mktemp("written")
    for path in FIRST:
        result = pasted(EXAMPLES[path], folder, program)
        assert result.returncode == 0, result.stderr
        assert result.stdout
    return folder


def test_every_verb_has_an_example_of_itself() -> None:
    assert all(example.startswith(path) for path, example in EXAMPLES.items())


def test_an_example_is_shown_in_one_piece() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "meshwright", "place", "--help"],
        env=os.environ | {"COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = [line.strip() for line in shown.splitlines()]
    assert f"Example:  {EXAMPLES['meshwright place']}" in lines


def cases() -> list[object]:
    parameters: list[object] = []
    for path in EXAMPLES:
        marks = [pytest.mark.ranks] if path == "meshwright run" else []
        if path not in (*FIRST, "meshwright demo"):
            parameters.append(pytest.param(path, marks=marks, id=path))
    return parameters


@pytest.mark.parametrize("path", cases())
def test_example(path: str, written: Path, program: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    result = pasted(EXAMPLES[path], tmp_path, program)
    assert result.returncode == 0, result.stderr
    assert result.stdout
