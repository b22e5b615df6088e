"""The verb `sweep`, with a search that is none."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="models are loaded by the room that captures them")

from meshwright.base.errors import InputError
from meshwright.cli.verbs.sweep import sweep
from meshwright.graph.text import parse_graph
from meshwright.search import jobs
from support import fake_best

GRAPH = """graph {name}
input x: float32[n=64, d=32]
parameter a: float32[o=32, i=32]
operator y: y: float32[n=64, d=32] = linear(x, a)
output y"""

PLANNED = jobs.planned


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, one of which is refused, and a sweep of both."""
    for name in ("good", "refused"):
        graph = parse_graph(GRAPH.format(name=name))
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(graph))
    (tmp_path / "sweep.toml").write_text(
        'models = ["good.json", "refused.json"]\nclusters = ["laptop", "summit node=1"]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "meshwright.search.joint.planner", fake_best.module())
    return tmp_path


def test_a_table_and_what_went_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep("sweep.toml", cores=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["model", "cluster", "batch", "devices", "step"]
    assert [line.split()[:2] for line in lines[2:4]] == [
        ["good.json", "laptop"],
        ["good.json", "summit"],
    ]
    assert lines[-2:] == [
        "refused.json on laptop: the graph is refused; give another.",
        "refused.json on summit node=1: the graph is refused; give another.",
    ]


def test_documents(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep("sweep.toml", cores=1, json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["stopped"], report["jobs"]) == ("complete", 4)
    first = report["rows"][0]
    assert (first["model"], first["devices"], first["gap"], first["rewrites"]) == (
        "good.json", 4, 1.0, 1,
    )  # fmt: skip
    assert report["rows"][2] == {
        "model": "refused.json",
        "cluster": "laptop",
        "batch": None,
        "error": "the graph is refused; give another.",
    }
    sweep("sweep.toml", cores=1, csv=True)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["step_s"] or "nan") for row in rows[:2]] == [
        row["step_s"] for row in report["rows"][:2]
    ]
    assert rows[3]["error"] == "the graph is refused; give another."


def test_finished_jobs_are_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(job: jobs.Job) -> jobs.JobRow:
        asked.append(str(job))
        return PLANNED(job)

    monkeypatch.setattr(jobs, "planned", noted)
    sweep("sweep.toml", cores=1, results="r.jsonl", json=True)
    first = capsys.readouterr().out
    assert len(asked) == 4
    sweep("sweep.toml", cores=1, results="r.jsonl", json=True)
    assert capsys.readouterr().out == first
    assert asked[4:] == ["refused.json on laptop", "refused.json on summit node=1"]


def test_an_interrupt_shows_what_is_finished(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: jobs.Job) -> jobs.JobRow:
        if job.cluster == "laptop":
            return PLANNED(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "planned", interrupted)
    sweep("sweep.toml", cores=1, results="r.jsonl")
    printed = capsys.readouterr()
    assert "good.json" in printed.out
    rest = "1 of 4 jobs are finished; the same command goes on from r.jsonl."
    assert printed.err == f"meshwright: interrupted: {rest}\n"
    (folder / "r.jsonl").unlink()
    (folder / "sweep.toml").write_text('models = ["good.json"]\nclusters = ["summit node=1"]\n')
    with pytest.raises(KeyboardInterrupt):
        sweep("sweep.toml", cores=1)


def test_one_form_at_a_time(folder: Path) -> None:
    with pytest.raises(InputError, match="--csv and --json are both given"):
        sweep("sweep.toml", csv=True, json=True)
    with pytest.raises(InputError, match="--where is 'cloud'"):
        sweep("sweep.toml", where="cloud")
