"""The verbs that explain a plan and put two side by side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshwright.baselines.data import data_parallel, zero
from meshwright.baselines.expert import expert
from meshwright.cluster.cluster import Cluster
from meshwright.plan.file import save_plan
from support.baseline_graphs import convolutional, transformer
from support.typed import typed

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, folder=folder)


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    result = meshwright(folder, *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three plans, and files that are none."""
    folder = tmp_path_factory.mktemp("explained")
    save_plan(expert(transformer(), SMALL), folder / "expert.json")
    save_plan(zero(1)(transformer(), SMALL), folder / "zero.json")
    gloo = msgspec.structs.replace(expert(transformer(), SMALL), backend="gloo")
    save_plan(gloo, folder / "gloo.json")
    save_plan(data_parallel(convolutional(), SMALL), folder / "cnn.json")
    (folder / "garbage.json").write_text("{garbage")
    (folder / "trace.json").write_text('{"traceEvents": []}')
    (folder / "newer.json").write_text('{"meshwright_plan": 999}')
    return folder


def test_explain_prints_every_part(folder: Path) -> None:
    result = meshwright(folder, "explain", "expert.json", "--top", "3", "--budget", "0")
    assert (result.returncode, result.stderr) == (0, "")
    for words in (
        "DP 2 across nodes", "runner-up", "critical path", "exposed",
        "of the roofline", "what would help", "links between nodes", "node/nic", "--top",
    ):  # fmt: skip
        assert words in result.stdout, words


def test_explain_for_scripts(folder: Path) -> None:
    report = document(folder, "explain", "gloo.json", "--memory", "1GB", "--budget", "0")
    assert report["memory_limit_bytes"] == 10**9
    assert report["backend"] == "gloo"
    assert {decision["subject"] for decision in report["decisions"]} >= {"zero", "recompute"}
    assert report["stopped"] in ("complete", "budget")


def test_diff_prints_every_part(folder: Path) -> None:
    result = meshwright(folder, "diff", "expert.json", "zero.json")
    assert (result.returncode, result.stderr) == (0, "")
    for words in (
        "first: expert.json: transformer on dgx-h100", "as fast.", "critical path",
        "option", "laid out differently", "collective",
    ):  # fmt: skip
        assert words in result.stdout, words


def test_diff_of_plans_for_other_libraries(folder: Path) -> None:
    report = document(folder, "diff", "expert.json", "gloo.json")
    assert [plan["backend"] for plan in report["plans"]] == ["nccl", "gloo"]
    assert report["options"] == [{"name": "backend", "one": "nccl", "other": "gloo"}]
    assert report["speedup"] != 1


def test_diff_of_a_plan_with_itself(folder: Path) -> None:
    result = meshwright(folder, "diff", "expert.json", "expert.json")
    assert result.returncode == 0
    assert result.stdout.rstrip().endswith("The plans are the same.")
    assert document(folder, "diff", "expert.json", "expert.json")["same"] is True


def test_diff_of_other_models_is_no_mistake(folder: Path) -> None:
    report = document(folder, "diff", "expert.json", "cnn.json")
    assert report["same"] is False
    assert report["graph"].startswith("the graphs differ: transformer (")
    assert report["cluster"] is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing.json", "cannot read plan 'missing.json' (No such file or directory); write one"),
        ("garbage.json", "plan 'garbage.json': it is no JSON"),
        ("trace.json", "plan 'trace.json': it is a trace; give a file with 'meshwright_plan'"),
        ("newer.json", "plan 'newer.json': it has version 999, and this Meshwright reads version"),
    ],
)
@pytest.mark.parametrize("verb", [("explain",), ("diff", "expert.json")])
def test_what_is_no_plan_ends_in_a_sentence(
    folder: Path, verb: tuple[str, ...], name: str, sentence: str
) -> None:
    result = meshwright(folder, *verb, name)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"meshwright: {sentence}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--top", "0"), "--top is 0"),
        (("--budget", "soon"), "--budget"),
        (("--memory", "900GB"), "--memory is 900GB and a device of 'dgx-h100' has"),
    ],
)
def test_options_that_cannot_be(folder: Path, options: tuple[str, ...], sentence: str) -> None:
    result = meshwright(folder, "explain", "expert.json", *options)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr


@pytest.mark.parametrize("verb", ["explain", "diff"])
def test_help_has_an_example(folder: Path, verb: str) -> None:
    assert f"Example:  meshwright {verb} plan.json" in meshwright(folder, verb, "--help").stdout


def test_a_plan_stands_for_its_model(folder: Path) -> None:
    result = meshwright(folder, "capture", "expert.json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("transformer: ")
    refused = meshwright(folder, "capture", "expert.json", "--batch", "8")
    assert "'expert.json' is a plan, with its batch and dtype built in" in refused.stderr
