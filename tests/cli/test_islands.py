"""The verbs on sums of islands: plan, explain, replan, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from meshwright.cli.verbs.replan import _asked
from meshwright.cluster.island_toml import dump_machine
from meshwright.plan.file import load_plan
from meshwright.plan.island_plan import load_island_plan
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.islands import island, machine_of, two_layers
from support.typed import typed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small machine, a model and a plan over islands."""
    path = tmp_path_factory.mktemp("islands")
    machine = machine_of(island("fast", 1), island("slow", 1, speed=0.5))
    (path / "small.toml").write_text(dump_machine(machine))
    (path / "two.json").write_bytes(msgspec.json.encode(two_layers(6)))
    words = ("plan", "two.json", "--cluster", "small.toml", "--budget", "2s", "--cores", "1")
    result = typed(*words, folder=path)
    assert result.returncode == 0, result.stderr
    (path / "printed.txt").write_text(result.stdout)
    return path


def test_plan_says_which_island_does_what(folder: Path) -> None:
    printed = (folder / "printed.txt").read_text()
    assert "4 of 6 samples (66.7%)" in printed
    assert "against equal shares for every device: " in printed
    assert "against fast alone: " in printed
    assert "lower bound: " in printed
    plan = load_island_plan(folder / "plan.json")
    assert [part.share for part in plan.parts] == [4, 2]


def test_explain_names_the_straggler(folder: Path) -> None:
    result = typed("explain", "plan.json", folder=folder)
    assert "straggler: a device of 'slow' does" in result.stdout
    document = json.loads(typed("explain", "plan.json", "--json", folder=folder).stdout)
    without = {entry["island"]: entry["change"] for entry in document["without"]}
    assert without["fast"] > without["slow"] > 0


def test_replan_without_an_island(folder: Path) -> None:
    words = ("replan", "plan.json", "--without", "slow", "--budget", "1s", "-o", "left.json")
    result = typed(*words, folder=folder)
    assert result.returncode == 0, result.stderr
    assert "x as long as on the full machine" in result.stdout
    assert "gpu 1" in result.stdout


def test_a_regular_plan_keeps_the_batch_of_a_plan_over_islands(folder: Path) -> None:
    machine = machine_of(island("fast", 1), island("slow", 1, speed=0.5))
    (folder / "small.toml").write_text(dump_machine(machine))
    words = ("plan", "zoo:lenet/tiny", "--batch", "6", "-c", "small.toml", "--budget", "2s")
    planned = typed(*words, "--cores", "1", "-o", "lenet.json", folder=folder)
    assert planned.returncode == 0, planned.stderr
    words = ("replan", "lenet.json", "--without", "slow", "--budget", "1s", "-o", "one.json")
    assert typed(*words, folder=folder).returncode == 0
    left = load_plan(folder / "one.json")
    assert (left.model, left.batch) == ("zoo:lenet/tiny", 6)
    # A saved graph has its batch built in, and is asked for none.
    words = ("replan", "plan.json", "--without", "slow", "--budget", "1s", "-o", "two-left.json")
    assert typed(*words, folder=folder).returncode == 0
    assert load_plan(folder / "two-left.json").batch is None
    export = typed("export", "one.json", "--to", "pytorch", "--out", "job", folder=folder)
    assert export.returncode == 0, export.stderr


REDUCE = ("reduce", "--cluster", "small.toml", "--reduce", "data", "--axes")


def test_reduce_finds_programs_over_unequal_groups(tmp_path: Path) -> None:
    machine = machine_of(island("big", 2, 2), island("small", 3), rate="1 Gb/s")
    (tmp_path / "small.toml").write_text(dump_machine(machine))
    shown = typed(*REDUCE, "data=7", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(
        "big (node 2 x gpu 2) + small (gpu 3), data 1 GiB: 1928 programs"
    )
    assert "x as fast as a single AllReduce over all devices (" in shown.stdout
    document = json.loads(typed(*REDUCE, "data=7", "--json", folder=tmp_path).stdout)
    assert (document["count"], document["islands"]) == (1928, {"big": [2, 2], "small": [3]})
    times = [program["predicted_s"] for program in document["programs"]]
    assert times == sorted(times)
    best = document["programs"][0]
    again = typed(*REDUCE, "data=7", "--program", best["program"], "--json", folder=tmp_path)
    assert json.loads(again.stdout)["programs"] == [best]


def test_replan_begins_from_the_model_and_not_from_a_rewritten_graph(folder: Path) -> None:
    asked = two_layers(6)
    (folder / "asked.json").write_bytes(msgspec.json.encode(asked))
    rewritten = msgspec.structs.replace(asked, name="rewritten")
    cluster = machine_of(island("a", 2), island("b", 1)).islands[0].cluster
    layouts = [Layout(("replica",)) for _ in units(rewritten)]
    plan = Plan.of("x", rewritten, cluster, layouts)
    graph, _, _ = _asked(msgspec.structs.replace(plan, model=str(folder / "asked.json")))
    assert graph == asked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replan", "plan.json"), "nothing is out or slow"),
        (("replan", "plan.json", "--without", "medium"), "no island 'medium'"),
        (("plan", "two.json", "-c", "small.toml", "--devices", "1"), "is a sum of islands"),
        (("plan", "two.json", "-c", "small.toml", "--nodes", "2"), "are about one island"),
        (("compare", "two.json", "-c", "small.toml"), "small.toml#fast"),
        (("simulate", "plan.json"), "a plan over islands"),
        ((*REDUCE, "data=3"), "all 2 devices sum up together; give --axes data=2 --reduce data"),
        ((*REDUCE, "data=2", "--torch"), "--torch is given, and 'small' is a sum of islands"),
        ((*REDUCE, "data=2", "--limit", "0"), "--limit is 0; give 1 to 20"),
        ((*REDUCE, "data=2", "--program", "across.Sum"), "'Sum' is not a collective"),
        ((*REDUCE, "data=2", "--backend", "gloo", "--algorithm", "tree"), "has no tree algorithm"),
        (("clusters", "dgx-h100", "--without", "node9"), "has node0 to node3"),
        (("clusters", "dgx-h100", "--slow", "node1"), "is no PART=SHARE"),
        (("clusters", "dgx-h100", "--slow", "node1=0"), "the speed 0"),
    ],
)
def test_mistakes_get_a_sentence(folder: Path, words: tuple[str, ...], said: str) -> None:
    result = typed(*words, folder=folder)
    assert result.returncode != 0
    assert said in result.stderr
    assert "Traceback" not in result.stderr
