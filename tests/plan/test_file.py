"""Plans on disk: what is written is read, and what is wrong is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.plan.file import load_plan, parse_plan, plan_bytes, save_plan
from meshwright.plan.fits import difference, require_cluster, require_graph
from meshwright.plan.plan import Plan
from support.baseline_graphs import convolutional
from support.plan_strategies import plans

Content = dict[str, Any]

PLAN = data_parallel(convolutional(), Cluster.named("laptop"))


@given(plans())
def test_what_is_saved_is_loaded_and_saves_the_same(plan: Plan) -> None:
    content = plan_bytes(plan)
    again = parse_plan(content)
    assert again == plan
    assert plan_bytes(again) == content


def test_a_file_is_json_with_a_layout_a_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    assert load_plan(path) == PLAN
    text = path.read_text()
    assert json.loads(text)["meshwright_plan"] == 1
    assert text.startswith('{\n "meshwright_plan": 1,\n "origin": "data parallel",\n')
    assert '\n  ["conv","sample sample"],\n' in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        save_plan(PLAN, tmp_path / "missing" / "plan.json")
    folder = tmp_path / "plan.json"
    folder.mkdir()
    with pytest.raises(InputError, match="cannot write"):
        save_plan(PLAN, folder)
    assert folder.is_dir()


def set_version(version: object) -> Callable[[Content], None]:
    return lambda content: content.update(meshwright_plan=version)


def set_layout(index: int, name: str, layout: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["layouts"][index] = [name, layout]

    return change


def drop_layout(content: Content) -> None:
    content["layouts"].pop()


def break_shape(content: Content) -> None:
    content["graph"]["operators"][0]["outputs"][0]["dims"][0][1] = 7


def break_order(content: Content) -> None:
    content["graph"]["operators"].reverse()


def empty_name(content: Content) -> None:
    content["graph"]["operators"][0]["inputs"][0] = ""


def empty_links(content: Content) -> None:
    content["cluster"]["levels"][0]["links"] = []


def other_cluster(content: Content) -> None:
    content["cluster"] = msgspec.to_builtins(Cluster.named("dgx-h100", node=4))


def add_program(over: list[int], program: str) -> Callable[[Content], None]:
    return lambda content: content.update(
        programs=[{"over": over, "beside": [], "bytes": 1.0, "program": program}]
    )


def add_chain(
    collective: str, over: list[int], steps: list[list[int]]
) -> Callable[[Content], None]:
    return lambda content: content.update(
        chains=[{"collective": collective, "over": over, "bytes": 1.0, "steps": steps}]
    )


WRONG: list[tuple[Callable[[Content], object], str]] = [
    (set_version(2), "version 2, and this Meshwright reads version 1; take a newer Meshwright"),
    (set_version(0), "version 0, and this Meshwright reads version 1; make it anew"),
    (set_version("x"), "version 'x'"),
    (lambda content: content.pop("meshwright_plan"), "it is no plan"),
    (lambda content: content.pop("cluster"), "missing required field `cluster`"),
    (lambda content: content.update(layout=[]), "unknown field `layout`"),
    (lambda content: content["options"].update(zero=4), "the ZeRO stage is 4"),
    (lambda content: content["options"].update(micro_batches=0), "micro-batches is 0"),
    (lambda content: content["options"].update(schedule="2f2b"), "2f2b"),
    (break_shape, "its graph is not consistent: operator conv"),
    (break_order, "its graph is not consistent: operator loss reads r"),
    (empty_name, "operator conv reads a tensor without a name"),
    (empty_links, "has no link"),
    (other_cluster, "has 2 roles, 'sample sample'; give one for each of the cluster's 5 prime"),
    (set_layout(0, "conf", "sample sample"), "did you mean 'conv'"),
    (set_layout(1, "conv", "sample sample"), "lays out 'conv' twice"),
    (drop_layout, "no layout for 'loss'"),
    (set_layout(0, "conv", "sample rows"), "cannot be split along 'rows'"),
    (set_layout(0, "conv", "sample @2"), "sits at '@2' of factor 1, which has 2"),
    (set_layout(0, "conv", "sample @x"), "'x' is not a whole number"),
    (add_program([2], "root.InsideGroup.AllReduce"), "a reduction names factors [2]"),
    (add_program([0, 0], "root.InsideGroup.AllReduce"), "a reduction names factors [0, 0]"),
    (add_program([0], "root.InsideGroup.Sum"), "Sum"),
    (add_chain("AllGather", [2], [[2]]), "a chain of AllGather names factors [2]"),
    (add_chain("AllGather", [0, 1], [[0]]), "over factors [0, 1] has steps [[0]]"),
    (add_chain("AllGather", [0, 1], [[1, 0]]), "one step, ascending"),
    (add_chain("AllGathers", [0], [[0]]), "did you mean 'AllGather'"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_what_is_wrong_is_said(
    tmp_path: Path, change: Callable[[Content], object], words: str
) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_bytes(PLAN))
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"plan {str(path)!r}: ")
    assert words in str(caught.value)


def test_a_degree_that_does_not_divide_is_said() -> None:
    plan = data_parallel(convolutional(), Cluster.named("dgx-h100", node=2))
    content = json.loads(plan_bytes(plan))
    content["layouts"][0] = ["conv", "channel channel channel channel"]
    with pytest.raises(InputError, match="6 units along 'channel', which cannot be cut 16 ways"):
        parse_plan(json.dumps(content).encode())


FOREIGN = [
    (b"", "it is no JSON"),
    (b"\xff\xfe", "it is no JSON"),
    (plan_bytes(PLAN)[:-40], "it is no JSON"),
    (b"[" * 100_000, "it is nested too deep"),
    (b"[1]", "it is no plan"),
    (b'{"meshwright_checkpoint": 1}', "it is a checkpoint of a search"),
    (msgspec.json.encode(PLAN.graph), "it is a graph"),
    (b'{"traceEvents": []}', "it is a trace"),
]


@pytest.mark.parametrize(("content", "words"), FOREIGN)
def test_other_files_are_named(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_plan(content)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read plan .*No such file or directory"):
        load_plan(tmp_path / "plan.json")


@given(plans(), st.randoms(use_true_random=False))
def test_a_damaged_file_is_a_sentence_or_a_plan(plan: Plan, random: Any) -> None:
    """Whatever one value of the JSON is replaced by, nothing but an InputError comes out."""
    content = json.loads(plan_bytes(plan))
    at: Any = content
    while True:
        key = random.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], (dict, list)) or not at[key] or random.random() < 0.2:
            break
        at = at[key]
    at[key] = random.choice([None, -1, 0, 2.5, 10**30, "", "x", [], {}, [1], {"a": 1}, True])
    with suppress(InputError):
        parse_plan(json.dumps(content).encode())


def test_another_cluster_is_told_by_what_differs() -> None:
    require_cluster(PLAN, Cluster.named("laptop"))
    with pytest.raises(InputError, match=r"for another cluster: name is 'laptop' in the plan and"):
        require_cluster(PLAN, Cluster.named("h200"))
    with pytest.raises(InputError, match=r"levels.process.cardinality is 4 in the plan and 8 here"):
        require_cluster(PLAN, Cluster.named("laptop", process=8))


def test_another_graph_is_told_by_what_differs() -> None:
    require_graph(PLAN, convolutional())
    with pytest.raises(InputError, match=r"for another graph: inputs.x.dims.0.1 is 12 in the plan"):
        require_graph(PLAN, convolutional(batch=24))


def test_differences() -> None:
    assert difference([1, {"a": 2}], [1, {"a": 2}]) is None
    assert difference([1], [1, 2]) == ("1", "missing", "2")
    assert difference({"a": [{"name": "x"}]}, {"a": []}) == ("a.x", "'x'", "missing")
    assert difference(1, "1") == ("", "1", "'1'")
