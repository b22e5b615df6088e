"""`meshwright report`, and the files that `plan` writes beside its plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.baselines.data import data_parallel
from meshwright.cli.main import main
from meshwright.cluster.cluster import Cluster
from meshwright.plan.file import save_plan
from meshwright.report.page.page import looks_like_report
from support.baseline_graphs import convolutional

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command line in a folder that has a plan: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    save_plan(data_parallel(convolutional(batch=64), Cluster.named("laptop")), "plan.json")

    def ran(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["meshwright", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return ran


def test_a_report_of_a_saved_plan(run: Run) -> None:
    code, out, err = run("report", "plan.json", "--trace", "trace.json", "--budget", "1s")
    assert (code, err) == (0, "")
    assert out == "The report is in report.html; open it in a browser.\n"
    assert looks_like_report("report.html")
    text = Path("report.html").read_text()
    assert "There was no search" in text
    assert "runner-up" in text
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    code, out, _ = run("report", "plan.json", "--no-explain")
    assert code == 0
    assert out.endswith(" What report.html was before is in report.before.html.\n")
    assert Path("report.before.html").read_text() == text


def test_json_tells_where_everything_is(run: Run) -> None:
    code, out, _ = run("report", "plan.json", "--save", "own.html", "--no-explain", "--json")
    assert code == 0
    assert json.loads(out) == {"report": "own.html", "trace": None}
    assert looks_like_report("own.html")


def test_a_file_that_is_no_report_is_not_replaced_unasked(run: Run) -> None:
    Path("report.html").write_text("mine")
    code, out, err = run("report", "plan.json")
    assert (code, out) == (2, "")
    assert "'report.html' is there already and is no report; name a file with --out" in err
    assert Path("report.html").read_text() == "mine"
    assert run("report", "plan.json", "--save", "report.html", "--no-explain")[0] == 0
    assert looks_like_report("report.html")


MISTAKES = [
    (["--save", "nowhere/report.html"], "--out: cannot write 'nowhere/report.html'"),
    (["--trace", "nowhere/trace.json"], "--trace: cannot write 'nowhere/trace.json'"),
    (["--out", "one", "--trace", "./one"], "--out and --trace are both './one'; name two files"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_one_sentence(run: Run, options: list[str], words: str) -> None:
    code, out, err = run("report", "plan.json", *options)
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: ")
    assert err.count("\n") == 1
    assert words in err


def test_what_is_no_plan_is_said(run: Run) -> None:
    code, _, err = run("report", "missing.json")
    assert code == 2
    assert "cannot read plan 'missing.json'" in err
