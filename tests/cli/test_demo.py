"""The verb `demo`, which is the example of its own help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meshwright.cli.examples import example_of
from meshwright.cli.main import app, command, main
from meshwright.cli.verbs import demo, report

SHORT = {
    "20s": "1s", "40": "2", "10s": "1s", "zoo:llama3-8b": "zoo:llama3-8b/tiny", "4096": "16",
}  # fmt: skip
"""For each budget and size of the demo a smaller one: what it finds is not judged here."""


def lines(folder: Path) -> list[tuple[str, ...]]:
    return [*demo._planning(folder), *demo._training(folder)]


def test_every_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    root = command()
    assert isinstance(root, typer.core.TyperGroup)
    with root.make_context("meshwright", ["models"]) as context:
        for verb, *words in lines(tmp_path):
            subcommand = root.get_command(context, verb)
            assert subcommand is not None
            subcommand.make_context(verb, list(words), parent=context).close()


def test_everything_goes_into_the_folder(tmp_path: Path) -> None:
    written = {
        word.partition("=")[2]
        for words in lines(tmp_path)
        for word in words
        if word.startswith(("--save=", "--out=", "--report=", "--trace="))
    }
    assert len(written) == 6
    assert all(Path(file).parent == tmp_path for file in written)


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("")
    result = CliRunner().invoke(app, ["demo"])
    assert str(result.exception).startswith("'demo' is a file")


@pytest.mark.ranks
def test_it_works_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planning, training = demo._planning, demo._training

    def shortened(commands: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(
                SHORT[word] if before == "--budget" else SHORT.get(word, word)
                for before, word in zip(("", *words), words, strict=False)
            )
            for words in commands
        )

    monkeypatch.setattr(report, "EXPLAINING", 1.0)
    monkeypatch.setattr(demo, "_planning", lambda place: shortened(planning(place)))
    monkeypatch.setattr(demo, "_training", lambda place: shortened(training(place)))
    monkeypatch.chdir(tmp_path)
    example = example_of(command().commands["demo"])
    monkeypatch.setattr(sys, "argv", example.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert printed.count("$ meshwright ") == 5
    assert "Equal to one device: yes." in printed
    assert {path.name for path in Path("demo").iterdir()} == {
        "plan.json", "report.html", "trace.json", "here.toml", "prices.jsonl", "tiny.json",
    }  # fmt: skip
