"""The verbs that simulate plans and search for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.plan.file import load_plan
from meshwright.search.mcmc.metropolis import PROPOSED
from meshwright.search.mcmc.search_checkpoint import VERSION
from support.typed import typed

COMPARE = ("compare", "zoo:lenet", "--cluster", "laptop")
PATIENCE = 600
"""Seconds to wait for another process, which may have to compile first."""


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, folder=folder)


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    result = meshwright(folder, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plan, the checkpoint and the document of a short search."""
    folder = tmp_path_factory.mktemp("plans")
    result = meshwright(
        folder, *COMPARE, "--budget", "3000", "--save", "plan.json", "--checkpoint", "search.json",
        "--papers", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (folder / "compared.json").write_text(result.stdout)
    (folder / "garbage.json").write_text("{garbage")
    return folder


def test_compare_puts_strategies_side_by_side(folder: Path) -> None:
    report = json.loads((folder / "compared.json").read_text())
    named = {entry["name"]: entry for entry in report["strategies"]}
    assert next(iter(named)) == "DDP"
    assert list(named)[-1] == "search"
    assert {
        "model parallel",
        "expert-designed",
        "zero 1",
        "zero 2",
        "zero 3",
        "optcnn",
    } <= named.keys()
    starts = [entry["step_s"] for entry in named.values() if entry["zero"] == 0]
    assert named["search"]["step_s"] == min(starts)
    fitting = [entry["step_s"] for entry in list(named.values())[:-1] if entry["fits"]]
    for strategy in named.values():
        assert strategy["speedup"] == min(fitting) / strategy["step_s"]
        assert strategy["fits"] == (strategy["missing_bytes"] == 0)
        assert sum(strategy["memory"].values()) == strategy["memory_bytes"]
        assert strategy["exposed_s"] == strategy["step_s"] - strategy["compute_s"]
    assert [named[f"zero {n}"]["zero"] for n in (1, 2, 3)] == [1, 2, 3]
    search = report["search"]
    assert search["proposals"] >= 3000 or search["stopped"] == "settled"
    assert search["history"][-1]["step_s"] == named["search"]["step_s"]
    assert search["origin"] in {*named, "random"}
    assert report["budget"] == "3000"
    assert report["seed"] == 0


def test_a_budget_in_proposals_gives_the_same_plan_again(folder: Path) -> None:
    again = meshwright(folder, *COMPARE, "--budget", "3000", "--save", "again.json")
    assert again.returncode == 0, again.stderr
    assert (folder / "again.json").read_bytes() == (folder / "plan.json").read_bytes()
    assert again.stdout.splitlines()[0].endswith(
        "every figure is predicted, priced as eager PyTorch"
    )
    assert "search: " in again.stdout
    assert again.stdout.endswith("The plan of the search is in again.json.\n")
    full = meshwright(
        folder, *COMPARE, "--budget", "3000", "--save", "full.json", "--engine", "full"
    )
    assert full.returncode == 0, full.stderr
    assert (folder / "full.json").read_bytes() == (folder / "plan.json").read_bytes()


def test_simulate_predicts_what_compare_did(folder: Path) -> None:
    compared = json.loads((folder / "compared.json").read_text())["strategies"][-1]
    reports = [
        document(folder, "simulate", "plan.json", "--engine", engine)
        for engine in ("full", "reference", "delta")
    ]
    for one in reports:
        shared = compared.keys() & one.keys()
        assert {"step_s", "moved_bytes", "memory", "fits", "micro_batches"} <= shared
        assert {key: one[key] for key in shared} == {key: compared[key] for key in shared}
    assert [one.pop("engine") for one in reports] == ["full", "reference", "delta"]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["origin"] == load_plan(folder / "plan.json").origin


def test_simulate_prints_what_it_predicts_and_writes_a_trace(folder: Path) -> None:
    result = meshwright(folder, "simulate", "plan.json", "--trace", "trace.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("lenet on laptop (4 process): search from")
    words = " ".join(result.stdout.split())
    assert "It fits: peak memory: " in words
    assert result.stdout.count("predicted") >= 4
    kinds = {
        event["ph"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
    }
    assert kinds == {"X", "C", "M"}
    assert "The trace is in trace.json." in words
    again = meshwright(folder, "simulate", "plan.json", "--trace", "trace.json").stdout
    assert "What trace.json was before is in trace.before.json." in " ".join(again.split())


def test_a_plan_that_does_not_fit_says_where_and_by_how_much(folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_text())
    content["cluster"]["device"]["memory"] = 10 << 20
    (folder / "tight.json").write_text(json.dumps(content))
    result = meshwright(folder, "simulate", "tight.json")
    assert result.returncode == 0
    assert "It does NOT fit: peak memory: " in result.stdout
    report = document(folder, "simulate", "tight.json")
    assert not report["fits"]
    assert report["missing_bytes"] == report["memory_bytes"] - (10 << 20)
    assert f"{report['missing_bytes'] / 2**20:.4g} MiB" in result.stdout


def test_a_plan_for_what_one_has(folder: Path) -> None:
    plan = ("simulate", "plan.json")
    same = meshwright(folder, *plan, "--cluster", "laptop", "--model", "zoo:lenet")
    assert same.returncode == 0, same.stderr
    for options, words in (
        (["--cluster", "h200"], "another cluster: name is 'laptop' in the plan and 'h200' here"),
        (["--cluster", "laptop", "--resize", "process=2"], "cardinality is 4 in the plan and 2"),
        (["--model", "zoo:lenet", "--batch", "8"], "another graph: inputs.image.dims.0.1 is 64"),
    ):
        result = meshwright(folder, *plan, *options)
        assert result.returncode == 2
        assert words in result.stderr


MISTAKES = [
    ([*COMPARE, "--budget", "0"], "--budget: a budget of 0; give seconds or a number"),
    ([*COMPARE, "--budget", "-5"], "--budget: a budget of '-5'"),
    ([*COMPARE, "--budget", "-5s"], "--budget: a budget of -5.0"),
    ([*COMPARE, "--budget", "soon"], "--budget: a budget of 'soon'"),
    ([*COMPARE, "--seed", "-1"], "--seed"),
    ([*COMPARE, "--engine", "fast"], "--engine is 'fast'"),
    ([*COMPARE, "--backend", "mpi"], "there is no backend 'mpi'"),
    ([*COMPARE, "--save", "nowhere/plan.json"], "--out: cannot write 'nowhere/plan.json'"),
    ([*COMPARE, "--save", "."], "--out: cannot write '.' (it is a folder)"),
    ([*COMPARE, "--checkpoint", "nowhere/x"], "--checkpoint: cannot write 'nowhere/x'"),
    ([*COMPARE, "--checkpoint", "x", "--save", "./x"], "--checkpoint and --out are both './x'"),
    ([*COMPARE, "--checkpoint", "garbage.json"], "'garbage.json' cannot be read"),
    ([*COMPARE, "--checkpoint", "plan.json"], "'plan.json' cannot be read"),
    (
        [*COMPARE, "--checkpoint", "search.json", "--seed", "1"],
        "with another model, cluster, constraint, seed",
    ),
    ([*COMPARE, "--batch", "0"], "the batch is 0"),
    (["compare", "zoo:lent", "--cluster", "laptop"], "did you mean 'lenet'"),
    (["compare", "zoo:lenet", "--cluster", "laptp"], "did you mean 'laptop'"),
    (["compare", "zoo:lenet", "-c", "h200", "--gpus", "1"], "has one device"),
    (["simulate", "missing.json"], "cannot read plan 'missing.json'"),
    (["simulate", "garbage.json"], "plan 'garbage.json': it is no JSON"),
    (["simulate", "search.json"], "it is a checkpoint of a search"),
    (["simulate", "compared.json"], "it is what 'compare --json' prints"),
    (["simulate", "plan.json", "--engine", "fast"], "--engine is 'fast'"),
    (["simulate", "plan.json", "--trace", "nowhere/t.json"], "cannot write 'nowhere/t.json'"),
    (["simulate", "plan.json", "--nodes", "2"], "are about --cluster"),
    (["simulate", "plan.json", "--batch", "2"], "is about --model"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], words: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = meshwright(folder, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("meshwright: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A search in a process of its own, in which an interrupt is not ignored."""
    return subprocess.Popen(
        [sys.executable, "-m", "meshwright", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )


def proposals(path: Path) -> int:
    """How many proposals the search of a checkpoint has made."""
    content = json.loads(path.read_bytes())
    assert content["meshwright_checkpoint"] == VERSION
    return sum(chain["numbers"][PROPOSED] for chain in content["state"]["chains"])


def wait_for_checkpoint(process: subprocess.Popen[str], path: Path, more_than: int = -1) -> int:
    """How many proposals the first checkpoint has that has more than some."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and proposals(path) > more_than:
            return proposals(path)
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


LONG = (*COMPARE, "--budget", "1000s", "--checkpoint")


def test_an_interrupted_search_shows_the_best_so_far(tmp_path: Path) -> None:
    process = started(tmp_path, *LONG, "search.json", "--save", "plan.json")
    wait_for_checkpoint(process, tmp_path / "search.json")
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "interrupted: this is the best so far" in printed
    assert load_plan(tmp_path / "plan.json").origin.startswith("search from ")
    assert errors == ""


def test_a_killed_search_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    process = started(tmp_path, *LONG, "search.json", "--save", "plan.json")
    first = wait_for_checkpoint(process, path)
    wait_for_checkpoint(process, path, more_than=first)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "plan.json").exists()
    kept = proposals(path)
    assert kept > first
    # A budget that is used up already: what was kept is all there is, and all of it.
    spent = document(tmp_path, *COMPARE, "--budget", "1", "--checkpoint", "search.json")
    assert spent["search"]["proposals"] == kept
    process = started(tmp_path, *LONG, "search.json")
    more = wait_for_checkpoint(process, path, more_than=kept)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert more > kept


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_help_has_an_example(tmp_path: Path, verb: str) -> None:
    result = meshwright(tmp_path, verb, "--help")
    assert result.returncode == 0
    assert "Example:" in result.stdout


def test_help_imports_neither_torch_nor_numba_nor_numpy() -> None:
    code = (
        "import sys, meshwright.cli.main; print({'torch', 'numba', 'numpy'} & sys.modules.keys())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
