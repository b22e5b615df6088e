"""Sweeps in TOML and their results on disk: every mistake is told, nothing finished is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.search.jobs import Job, JobRow, SweepOptions, load_jobs, parse_jobs
from meshwright.search.results import Results

SWEEP = """
models = ["zoo:mlp", "zoo:lenet"]
clusters = ["laptop", "dgx-h100 node=2 gpu=4"]
batches = [8, 16, 8]
[plan]
budget = "500"
memory = "38 GB"
"""

ROW = JobRow(
    devices=8, step_s=0.1, bound_s=0.05, gap=1.0, memory_bytes=9, graphs=1, rewrites=0,
    micro_batches=1, zero=0, recompute=False, search_s=2.0, stopped="complete",
)  # fmt: skip


def job(model: str) -> Job:
    return Job(model=model, cluster="laptop", batch=None, plan=SweepOptions())


def test_every_model_on_every_cluster_with_every_batch_once() -> None:
    jobs = parse_jobs(SWEEP)
    assert [str(job) for job in jobs[:4]] == [
        "zoo:mlp on laptop, batch 8",
        "zoo:mlp on laptop, batch 16",
        "zoo:mlp on dgx-h100 node=2 gpu=4, batch 8",
        "zoo:mlp on dgx-h100 node=2 gpu=4, batch 16",
    ]
    assert len(jobs) == 8
    assert {job.plan for job in jobs} == {SweepOptions(budget="500", memory="38 GB")}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("models =", "models", "not valid TOML"),
        ('["zoo:mlp", "zoo:lenet"]', "[]", "there are no models; name at least one."),
        ("[8, 16, 8]", '["8"]', "Expected `int`, got `str` - at `\\$.batches\\[0\\]`; see docs"),
        ("[8, 16, 8]", "[0]", "a batch is 0"),
        ("laptop", "labtop", "labtop.*did you mean 'laptop'"),
        ("node=2", "node", "'dgx-h100 node gpu=4': 'node' is no LEVEL=N; write it as 'node=2'."),
        ("node=2", "nodes=2", "no level 'nodes'"),
        ("node=2", "node=two", "cluster 'dgx-h100 node=two gpu=4'"),
        ("budget", "buget", "unknown field `buget`"),
        ('"500"', '"5 parsecs"', "a budget of '5 parsecs'"),
        ("38 GB", "38 GX", "38 GX"),
        ("[plan]", '[plan]\noptimizer = "adamm"', "Invalid enum value 'adamm'"),
        ("[plan]", '[plan]\nbackend = "nckl"', "nckl"),
    ],
)
def test_mistakes_are_told(before: str, after: str, sentence: str) -> None:
    assert before in SWEEP
    with pytest.raises(InputError, match=sentence):
        parse_jobs(SWEEP.replace(before, after))


def test_a_file_is_named_with_its_mistake(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    with pytest.raises(InputError, match="cannot read sweep"):
        load_jobs(str(path))
    path.write_text("models = []")
    with pytest.raises(InputError, match=r"sweep\.toml: .*missing required field `clusters`"):
        load_jobs(str(path))


def test_results_are_read_back(tmp_path: Path) -> None:
    results = Results(str(tmp_path / "r.jsonl"))
    assert results.load() == {}
    results.add(job("a"), ROW)
    results.add(job("b"), ROW)
    assert Results(str(tmp_path / "r.jsonl")).load() == {job("a"): ROW, job("b"): ROW}


def test_a_line_that_was_not_written_to_its_end_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    results = Results(str(path))
    for name in "abc":
        results.add(job(name), ROW)
    whole = path.read_bytes()
    third = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in (third + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert results.load().keys() == {job("a"), job("b")}
        results.add(job("d"), ROW)
        assert results.load().keys() == {job("a"), job("b"), job("d")}


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"other": 1}\n')
    with pytest.raises(InputError, match=r"cannot be read.*delete the file"):
        Results(str(path)).load()
    assert path.read_text() == '{"other": 1}\n'
    with pytest.raises(InputError, match="there is no such folder"):
        Results(str(tmp_path / "none" / "r.jsonl"))
