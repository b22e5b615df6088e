"""The verb `demo`; its help's example, which is the demo itself, is run with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meshwright.cli import demo
from meshwright.cli.main import app, command


def lines(folder: Path) -> list[tuple[str, ...]]:
    return [*demo._planning(folder), *demo._training(folder)]


def test_every_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    root = command()
    assert isinstance(root, typer.core.TyperGroup)
    with root.make_context("meshwright", ["models"]) as context:
        for verb, *words in lines(tmp_path):
            own = root.get_command(context, verb)
            assert own is not None
            own.make_context(verb, list(words), parent=context).close()


def test_everything_goes_into_the_folder(tmp_path: Path) -> None:
    written = {
        word.partition("=")[2]
        for words in lines(tmp_path)
        for word in words
        if word.startswith(("--save=", "--out=", "--report=", "--trace="))
    }
    assert len(written) == 6
    assert all(Path(own).parent == tmp_path for own in written)


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("")
    result = CliRunner().invoke(app, ["demo"])
    assert str(result.exception).startswith("'demo' is a file")
