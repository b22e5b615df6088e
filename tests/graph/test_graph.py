"""Graphs as nouns: text and JSON read back, mistakes are sentences, hashes ignore names."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check, unknown_kinds
from support.graph_strategies import any_graphs, elementwise_graphs

TINY = """\
graph tiny
input x: float32[batch=4, width=8]
input y: int64[batch=4]
parameter embed.weight (also head.weight): float32[out=8, in=8]
frozen scale: float32[]
buffer mask: bool[width=8]
operator fill: h: float32[batch=4, width=8] = masked_fill(x, mask) {value="-inf"}
operator layers.0.linear: l: float32[batch=4, width=8] = linear(h, embed.weight) @ layers.0
operator best: m: float32[batch=4], i: int64[batch=4] = max(l) {dim=1}
operator scaled: s: float32[batch=4, width=8] = mul(l, scale) @ layers.0
operator loss: e: float32[] = cross_entropy_loss(s, y, -) {ignore_index=-1, label_smoothing=0.1}
output m
output i
loss e
"""


def test_text_form() -> None:
    graph = parse_graph(TINY)
    assert str(graph) == TINY
    assert graph.parameter_count == 64
    assert [op.name for op in graph.consumers["l"]] == ["best", "scaled"]
    assert graph.producers["i"].name == "best"


@given(any_graphs())
def test_text_reads_back(graph: OperatorGraph) -> None:
    assert parse_graph(str(graph)) == graph


@given(any_graphs())
def test_json_reads_back(graph: OperatorGraph) -> None:
    assert msgspec.json.decode(msgspec.json.encode(graph), type=OperatorGraph) == graph
    assert hash(msgspec.json.decode(msgspec.json.encode(graph), type=OperatorGraph)) == hash(graph)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("inputs x: float32[n=4]", "did you mean 'input'"),
        ("input x: float33[n=4]", "dtype 'float33'"),
        ("input x: float32[n]", "'n' is not a dim"),
        ("input x float32", "is not a tensor"),
        ("parameter w: float32", "is not a parameter"),
        ("operator a: y: float32[n=4] = exp x", "is not an operator"),
        ("operator a: y: float32[n=4] = sum(x) {dim=one}", "no JSON value"),
        ("operator a: y: float32[n=4] = sum(x) {dim=[0.5]}", "is not known"),
        ("operator a: y: float32[n=4] = sum(x) {q=1, dim=1}", "sort them"),
        ("operator a: y: float32[n=4] = exp(-x)", "a dash in front"),
        ("loss a\nloss b", "2 losses"),
    ],
)
def test_mistakes_in_the_text_are_sentences(line: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("[", r"\[")):
        parse_graph(f"graph g\n{line}\n")


def test_text_without_a_title() -> None:
    with pytest.raises(InputError, match="begin with 'graph NAME'"):
        parse_graph("input x: float32[n=4]")


def test_infinite_attributes_are_text() -> None:
    y = Tensor(name="y", dtype="float32", dims=())
    with pytest.raises(InputError, match="write it as text, 'inf'"):
        Operator(name="a", kind="mul", inputs=("x",), outputs=(y,), attributes=(("other", 1e999),))


def test_a_right_graph_has_no_problems() -> None:
    assert check(parse_graph(TINY)) == ()


@given(elementwise_graphs())
def test_right_by_construction(graph: OperatorGraph) -> None:
    assert check(graph) == ()


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        ("operator best: m:", "operator fill: m:", "2 operators are called fill"),
        ("operator best: m:", "operator best: h:", "2 tensors are called h"),
        ("linear(h,", "linear(s,", "operator layers.0.linear reads s, which is made later"),
        ("linear(h,", "linear(z,", "operator layers.0.linear reads z, which nobody makes"),
        ("output m", "output z", "output z is made by nobody"),
        ("loss e", "loss z", "loss z is made by nobody"),
        ("loss e", "loss i", "loss i: int64[batch=4] is not one real number"),
        (
            "l: float32[batch=4, width=8]",
            "l: float32[batch=4, width=9]",
            "operator layers.0.linear: linear gives float32[4, 8], not float32[4, 9]",
        ),
        (
            "masked_fill(x, mask)",
            "masked_fill(x, y)",
            "operator fill: masked_fill: shapes (4, 8) and (4,) do not broadcast",
        ),
        ("linear(h, embed.weight)", "linear(h)", "layers.0.linear: linear: input 1 is missing"),
    ],
)
def test_what_is_wrong_is_named(wrong: str, right: str, problem: str) -> None:
    problems = check(parse_graph(TINY.replace(wrong, right, 1)))
    assert any(problem in message for message in problems), problems


def test_unknown_kinds_are_kept_and_named() -> None:
    graph = parse_graph(TINY.replace("mul(l, scale)", "mylib.swish(l, scale)"))
    assert check(graph) == ()
    assert unknown_kinds(graph) == (("mylib.swish", 1),)


def renamed(graph: OperatorGraph, order: random.Random) -> OperatorGraph:
    """The same graph with other names inside, and operators in another possible order."""
    fresh = {op.outputs[0].name: f"other.{i}" for i, op in enumerate(graph.operators)}
    waiting = list(graph.operators)
    done: list[Operator] = []
    known = {"x", "w"}
    while waiting:
        ready = [op for op in waiting if known.issuperset(op.inputs)]
        chosen = order.choice(ready)
        waiting.remove(chosen)
        known.add(chosen.outputs[0].name)
        (tensor,) = chosen.outputs
        done.append(
            msgspec.structs.replace(
                chosen,
                name=f"op.{fresh[tensor.name]}",
                inputs=tuple(fresh.get(name or "", name) for name in chosen.inputs),
                outputs=(msgspec.structs.replace(tensor, name=fresh[tensor.name]),),
            )
        )
    outputs = tuple(fresh.get(name, name) for name in graph.outputs)
    return msgspec.structs.replace(graph, operators=tuple(done), outputs=outputs)


@given(elementwise_graphs(), st.randoms(use_true_random=False))
def test_hash_ignores_names_and_order(graph: OperatorGraph, order: random.Random) -> None:
    assert canonical_hash(renamed(graph, order)) == canonical_hash(graph)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("width=8] = masked_fill", "width=7] = masked_fill"),
        ("label_smoothing=0.1", "label_smoothing=0.2"),
        ("mul(l, scale)", "mul(scale, l)"),
        ("output m\noutput i", "output i\noutput m"),
        ("loss e", ""),
        ("frozen scale", "parameter scale"),
        ("input y", "input z"),
    ],
)
def test_hash_sees_what_is_computed(here: str, there: str) -> None:
    changed = TINY.replace(here, there, 1)
    changed = changed.replace("(s, y,", "(s, z,") if there == "input z" else changed
    assert canonical_hash(parse_graph(changed)) != canonical_hash(parse_graph(TINY))


def test_two_dropouts_are_not_one_used_twice() -> None:
    text = """graph g
        input x: float32[n=4]
        operator a: a: float32[n=4] = dropout(x) {p=0.5, train=true}
        operator b: b: float32[n=4] = dropout(x) {p=0.5, train=true}
        operator c: c: float32[n=4] = add(a, b)
        output c"""
    assert canonical_hash(parse_graph(text)) != canonical_hash(
        parse_graph(text.replace("add(a, b)", "add(a, a)"))
    )
