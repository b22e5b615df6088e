"""Variants: what is kept, that nothing is missed, and that whatever is chosen computes the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.zoo import ENTRIES
from meshwright.capture.zoo.entry import Entry
from meshwright.cluster.cluster import Cluster
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.canonical import Contents, canonical_hash
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.search.joint.algebra.explore_rewrites import Costs, algebra, replayed, variants
from meshwright.search.joint.algebra.graph_segments import segments
from meshwright.search.joint.algebra.stitch import stitch_segments
from sequential import one_device, sequential
from support.training_graphs import random_graph, tiny

RULES = algebra()
PRICER = OperatorPricer(Cluster.named("summit").device)


def seconds_of(call: Call, wanted: tuple[bool, ...]) -> float:
    price = PRICER.price(call, wanted)
    return price.forward.seconds + price.backward.seconds


def chance_costs(graph: OperatorGraph) -> Costs:
    """Costs that differ for different graphs, so that whatever is looked at may be kept."""
    drawn = np.random.default_rng(int(canonical_hash(graph)[:12], 16))
    return drawn.uniform(1.0, 2.0, (3, 3))


TOWERS = """graph towers
input x: float32[n=4, k=8]
parameter u: float32[o=6, k=8]
parameter v: float32[o=6, k=8]
parameter w: float32[o=6, p=6]
operator a: a: float32[n=4, o=6] = linear(x, u)
operator b: b: float32[n=4, o=6] = relu(a)
operator c: c: float32[n=4, o=6] = linear(x, v)
operator d: d: float32[n=4, o=6] = relu(c)
operator e: e: float32[n=4, o=6] = add(b, d)
operator f: f: float32[n=4, o=6] = linear(e, w)
output f"""


DEEP = """graph deep
input x: float32[n=4, k=6]
parameter u: float32[o=6, k=6]
parameter v: float32[o=6, k=6]
parameter z: float32[o=6]
operator a: a: float32[n=4, o=6] = linear(x, u)
operator b: b: float32[n=4, o=6] = relu(a)
operator c: c: float32[n=4, o=6] = linear(b, v, z)
operator d: d: float32[n=4, o=6] = add(c, b)
operator e: e: float32[n=4, o=6] = sub(d, x)
output e"""

FINITE = RuleSet(
    tuple(
        rule
        for rule in RULES.rules
        if rule.name in (
            "linear-relu-fuse", "linear-relu-unfuse", "linear-bias-fuse", "linear-bias-unfuse",
            "linear-merge", "linear-relu-merge", "sum-of-linear", "linear-of-sum", "add-left",
            "add-right", "sub-add", "add-sub", "bias-add", "add-bias", "mul-left", "mul-right",
        )
    )
)  # fmt: skip
"""Rules that make finitely many graphs of those above."""


def every_graph(graph: OperatorGraph) -> dict[str, OperatorGraph]:
    """All graphs that rewrites lead to, in whatever order: the slow twin."""
    graphs = {canonical_hash(graph): graph}
    waiting = [Matcher(graph, FINITE)]
    while waiting:
        matcher = waiting.pop()
        for match in matcher.matches:
            after = matcher.rewrite(match)
            content = canonical_hash(after.graph)
            if content not in graphs:
                graphs[content] = after.graph
                waiting.append(after)
    return graphs


@pytest.mark.parametrize("text", [TOWERS, DEEP])
def test_a_thorough_search_misses_nothing(text: str) -> None:
    graph = parse_graph(text)
    every = every_graph(graph)
    explored = variants(
        graph, FINITE, chance_costs, alpha=np.inf, candidates=len(every) + 1, thorough=True
    )
    assert (explored.candidates, explored.stopped) == (len(every), "complete")
    floor = np.min([variant.costs for variant in explored.variants], axis=0)
    assert np.array_equal(
        floor, np.min([chance_costs(candidate) for candidate in every.values()], axis=0)
    )


@pytest.mark.parametrize("text", [TOWERS, DEEP])
def test_one_order_finds_what_is_cheapest_operator_by_operator(text: str) -> None:
    graph = parse_graph(text)

    def evaluate(candidate: OperatorGraph) -> Costs:
        costs = {"linear": 5.0, "linear_relu": 5.0, "relu": 1.0, "neg": 0.1}
        return np.full((1, 1), sum(costs.get(op.kind, 0.5) for op in candidate.operators))

    explored = variants(graph, FINITE, evaluate, alpha=1.5)
    least = min(float(evaluate(candidate)[0, 0]) for candidate in every_graph(graph).values())
    assert explored.variants[-1].costs[0, 0] == least
    assert least < evaluate(graph)[0, 0]


@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([1.0, 1.2, 2.0]))
def test_kept_variants_are_the_cheapest_of_those_looked_at(seed: int, alpha: float) -> None:
    graph = random_graph(random.Random(seed), 6)
    looked_at: list[Costs] = []

    def evaluate(candidate: OperatorGraph) -> Costs:
        looked_at.append(chance_costs(candidate))
        return looked_at[-1]

    explored = variants(graph, RULES, evaluate, alpha=alpha, candidates=40)
    tables = [kept.costs for kept in explored.variants]
    assert np.array_equal(np.min(tables, axis=0), np.min(looked_at, axis=0))
    assert explored.variants[0].chain == ()
    floor = np.min(looked_at, axis=0)
    assert all((table == floor).any() for table in tables[1:])
    for variant in explored.variants:
        assert canonical_hash(replayed(graph, RULES, variant.chain)) == canonical_hash(
            variant.graph
        )
        assert set(variant.graph.outputs) == set(graph.outputs)


def test_alpha_decides_what_is_expanded() -> None:
    """Two fusions are cheap together, but one alone costs more."""
    graph = parse_graph(TOWERS)

    def evaluate(candidate: OperatorGraph) -> Costs:
        fused = sum(op.kind == "linear_relu" for op in candidate.operators)
        return np.full((1, 1), (1.0, 1.1, 0.5)[fused])

    rules = algebra(("*merge*", "*sum*"))
    assert len(variants(graph, rules, evaluate, alpha=1.05).variants) == 1
    assert len(variants(graph, rules, evaluate, alpha=1.2).variants) == 2


def test_searches_end_when_told() -> None:
    graph = parse_graph(TOWERS)
    few = variants(graph, RULES, chance_costs, alpha=np.inf, candidates=5)
    assert (few.candidates, few.stopped) == (5, "candidates")
    turn = count()
    ended = variants(graph, RULES, chance_costs, alpha=np.inf, enough=lambda: next(turn) >= 3)
    assert (ended.stopped, ended.candidates <= 4) == ("enough", True)


def test_excluded_rules_are_not_used() -> None:
    explored = variants(parse_graph(TOWERS), algebra(("*fuse*", "*merge*")), chance_costs, alpha=9)
    used = {match.rule.name for variant in explored.variants for match in variant.chain}
    assert used
    assert not any("fuse" in name or "merge" in name for name in used)


@given(seed=st.integers(0, 10_000))
def test_numbers_tell_graphs_apart_as_hashes_do(seed: int) -> None:
    contents = Contents()
    graph = random_graph(random.Random(seed), 6)
    first = Matcher(graph, RULES)
    every = [graph, *(first.rewrite(match).graph for match in first.matches)]
    numbers, hashes = (
        [contents.number(candidate) for candidate in every],
        list(map(canonical_hash, every)),
    )
    assert [numbers.index(number) for number in numbers] == [
        hashes.index(digest) for digest in hashes
    ]


@pytest.mark.parametrize("name", ["xdl", "mlp", "bert-large", "inception-v3"])
def test_sequential_is_no_dearer_and_says_what_it_costs(name: str) -> None:
    graph = tiny(name)
    rewritten = sequential(graph, seconds_of)
    [whole] = segments(graph, RULES, least=len(graph.operators))
    before = one_device(whole, seconds_of)(graph)[0, 0]
    [after] = segments(rewritten.graph, RULES, least=len(rewritten.graph.operators))
    assert check(rewritten.graph) == ()
    assert one_device(after, seconds_of)(rewritten.graph)[0, 0] == pytest.approx(rewritten.seconds)
    assert rewritten.seconds <= before * (1 + 1e-9)


SHOW = """
import numpy as np
from meshwright.graph.text import parse_graph
from meshwright.search.joint.algebra.graph_segments import segments
from meshwright.search.joint.algebra.explore_rewrites import algebra, variants
def evaluate(graph):
    return np.array([[1 + len(str(graph)) % 7, 1 + len(str(graph)) % 11]])
for own in segments(parse_graph(TEXT), algebra(), least=3):
    for variant in variants(own.graph, algebra(), evaluate, alpha=9, candidates=90).variants:
        print(variant.graph, *variant.chain)
"""


def test_nothing_depends_on_the_order_of_hashes() -> None:
    shown = {
        subprocess.run(
            [sys.executable, "-c", SHOW.replace("TEXT", repr(DEEP))],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(shown) == 1
    assert "fuse" in shown.pop()


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_any_choice_of_variants_computes_the_same(model: Entry[Any]) -> None:
    torch.manual_seed(0)
    example = model.example(model.tiny, 4)
    graph = _undropped(capture(example))
    values = values_of(example, graph)
    expected = _outputs_and_gradients(graph, values)
    pieces = segments(graph, RULES, entries=2)
    chance = random.Random(0)
    choices = {segment.alike: _walks(pieces[segment.alike].graph, chance) for segment in pieces}
    whole = stitch_segments(
        graph, pieces, [chance.choice(choices[segment.alike]) for segment in pieces]
    )
    assert check(whole) == ()
    assert whole.parameters == graph.parameters
    results = _outputs_and_gradients(whole, values)
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        scale = value.abs().max().clamp(min=1e-6)
        assert (results[name] - value).abs().max() <= 1e-9 * scale, name


def _walks(graph: OperatorGraph, chance: random.Random) -> list[OperatorGraph]:
    """Graphs at the ends of random walks, which go further than a search does."""
    graphs = []
    for length in (0, 3, 12):
        matcher = Matcher(graph, RULES)
        for _ in range(length):
            names = sorted({match.rule.name for match in matcher.matches})
            if names:
                name = chance.choice(names)
                places = [match for match in matcher.matches if match.rule.name == name]
                matcher = matcher.rewrite(chance.choice(places))
        graphs.append(matcher.graph)
    return graphs


def _undropped(graph: OperatorGraph) -> OperatorGraph:
    """The graph without chance: a rewrite may change the order in which numbers are drawn."""
    return msgspec.structs.replace(graph, operators=tuple(map(_certain, graph.operators)))


def _certain(operator: Operator) -> Operator:
    attributes = dict(operator.attributes)
    attributes.pop("dropout_p", None)
    if operator.kind == "dropout":
        attributes["p"] = 0.0
    return msgspec.structs.replace(operator, attributes=tuple(sorted(attributes.items())))


def _outputs_and_gradients(graph: OperatorGraph, values: dict[str, Tensor]) -> dict[str, Tensor]:
    trained = {p.tensor.name for p in graph.parameters if p.trainable}
    fresh = {
        name: value.detach().clone().requires_grad_(name in trained)
        for name, value in values.items()
    }
    outputs = execute(graph, fresh)
    total = sum(value.sum() for value in outputs.values() if value.is_floating_point())
    assert isinstance(total, Tensor)
    total.backward()  # type: ignore[no-untyped-call]
    gradients = {f"gradient of {n}": v.grad for n, v in fresh.items() if v.grad is not None}
    return {name: value.detach() for name, value in (outputs | gradients).items()}
