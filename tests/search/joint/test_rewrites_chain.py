"""Variants and boundary layouts chosen together: brute force over all of them."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.model import Cluster
from meshwright.foundation.units import Bytes
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.check import check
from meshwright.graph.text import parse_graph
from meshwright.plan.model import Options
from meshwright.price.operator import OperatorPricer
from meshwright.price.step import Pricer
from meshwright.search.elimination import Costs
from meshwright.search.joint.boundaries import Boundaries
from meshwright.search.joint.question import Question
from meshwright.search.joint.rewrites import _cheapest, rewritten
from meshwright.search.joint.variants import algebra
from meshwright.simulate.prices import Prices


@st.composite
def chains(draw: st.DrawFn) -> list[list[Costs]]:
    """Tables of some variants of some segments, a tenth of the entries without a way."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 4))
    states = [1, *(draw(st.integers(1, 3)) for _ in range(count - 1)), 1]
    found = []
    for s in range(count):
        shape = states[s], states[s + 1]
        own = [random.integers(0, 50, shape).astype(float) for _ in range(draw(st.integers(1, 3)))]
        found.append([np.where(random.random(shape) < 0.1, np.inf, table) for table in own])
    return found


@given(chains())
def test_the_cheapest_variants_are_those_of_brute_force(tables: list[list[Costs]]) -> None:
    chosen = _cheapest(tables)
    costs = {
        variants: _way(tables, variants)
        for variants in product(*(range(len(own)) for own in tables))
    }
    assert costs[tuple(chosen)] == min(costs.values())


def _way(tables: list[list[Costs]], variants: tuple[int, ...]) -> float:
    """The cheapest way through the chosen variants, by all states of all boundaries."""
    own = [tables[s][v] for s, v in enumerate(variants)]
    return min(
        sum(float(own[s][states[s], states[s + 1]]) for s in range(len(own)))
        for states in product((0,), *(range(table.shape[1]) for table in own))
    )


UNITY = """graph unity
input x: float32[n=64, i=784]
parameter a: float32[o=512, i=784]
parameter b: float32[o=10, i=512]
operator l1: p: float32[n=64, d=512] = linear(x, a)
operator r: q: float32[n=64, d=512] = relu(p)
operator l2: y: float32[n=64, d=10] = linear(q, b)
output y"""


def boundaries(text: str, cluster: Cluster) -> Boundaries:
    question = Question(graph=parse_graph(text), cluster=cluster, memory=Bytes(1 << 40))
    prices, operators = Prices(Pricer(cluster, algorithm="best")), OperatorPricer(cluster.device)
    return Boundaries(question, Options(), prices, operators)


def test_a_relu_is_fused_where_that_costs_nothing() -> None:
    cluster = Cluster.named("dgx-a100", node=1, gpu=2)
    found = rewritten(parse_graph(UNITY), algebra(), boundaries(UNITY, cluster))
    assert [own.steps for own in found] == [("linear-relu-fuse at q: x = x, w = a",)]
    assert [op.kind for op in found[0].graph.operators] == ["linear_relu", "linear"]


def layered(count: int) -> str:
    """Layers of six operators, each of which two rules can make shorter."""
    wide = "float32[n=8, d=16]"
    lines = ["graph layered", f"input h0: {wide}"]
    lines += [f"parameter {w}{i}: float32[o=16, i=16]" for i in range(count) for w in "uvw"]
    for i in range(count):
        lines += [
            f"operator {i}.a: {i}.a: {wide} = linear(h{i}, u{i})",
            f"operator {i}.b: {i}.b: {wide} = relu({i}.a)",
            f"operator {i}.c: {i}.c: {wide} = linear(h{i}, v{i})",
            f"operator {i}.d: {i}.d: {wide} = relu({i}.c)",
            f"operator {i}.e: {i}.e: {wide} = add({i}.b, {i}.d)",
            f"operator {i}.f: h{i + 1}: {wide} = linear({i}.e, w{i})",
        ]
    return "\n".join([*lines, f"output h{count}"])


def test_every_layer_is_rewritten_alike() -> None:
    text = layered(3)
    graph = parse_graph(text)
    found = rewritten(graph, algebra(), boundaries(text, Cluster.named("laptop", process=2)))
    assert found
    for own in found:
        assert check(own.graph) == ()
        assert canonical_hash(own.graph) != canonical_hash(graph)
        assert len(own.graph.operators) < len(graph.operators)
        assert own.steps
        kinds = Counter(operator.kind for operator in own.graph.operators)
        assert all(count % 3 == 0 for count in kinds.values())
    assert len({canonical_hash(own.graph) for own in found}) == len(found)


def test_what_is_excluded_is_not_used() -> None:
    cluster = Cluster.named("laptop", process=2)
    rules = algebra(("*fuse*", "*merge*"))
    for own in rewritten(parse_graph(UNITY), rules, boundaries(UNITY, cluster)):
        assert not any("fuse" in step or "merge" in step for step in own.steps)


@pytest.mark.parametrize("copy", [0, 1, 2])
def test_operators_that_stay_are_in_every_graph(copy: int) -> None:
    text = layered(3)
    stay = frozenset({(f"{copy}.b", "relu")})
    cluster = Cluster.named("laptop", process=2)
    found = rewritten(parse_graph(text), algebra(), boundaries(text, cluster), lambda: False, stay)
    assert found
    for own in found:
        assert stay <= {(operator.name, operator.kind) for operator in own.graph.operators}


@pytest.mark.parametrize("after", [0, 1, 5])
def test_whoever_has_no_time_gets_graphs_all_the_same(after: int) -> None:
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    text = layered(2)
    found = rewritten(
        parse_graph(text), algebra(), boundaries(text, Cluster.named("laptop", process=2)), enough
    )
    assert all(check(own.graph) == () for own in found)
    assert after or not found
