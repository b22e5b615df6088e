"""Variants and boundary layouts chosen together: brute force over all of them, for any segments
between tensors that earlier ones made."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.plan.options import Options
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.search.joint.algebra.graph_segments import segments
from meshwright.search.joint.algebra.rewrites import _cheapest, rewritten
from meshwright.search.joint.algebra.segment_costs import SegmentCosts, boundary_tensors
from meshwright.search.joint.request.question import PlanRequest
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.solvers.variable_elimination import Costs


class Pieces(NamedTuple):
    """Segments as `_cheapest` sees them."""

    ends: list[tuple[str | None, str | None]]
    tables: list[list[Costs]]


@st.composite
def pieces(draw: st.DrawFn) -> Pieces:
    """Segments between tensors that earlier ones made, a tenth of the entries without a way.

    A tensor may be read by several segments, by a later one only, or by none; a segment may read
    nothing, make nothing, or neither.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    widths: dict[str, int] = {}
    ends: list[tuple[str | None, str | None]] = []
    tables = []
    for s in range(draw(st.integers(1, 5))):
        enters = draw(st.sampled_from((None, *widths)))
        leaves = draw(st.sampled_from((None, f"t{s}")))
        rows = 1 if enters is None else widths[enters]
        columns = 1 if leaves is None else draw(st.integers(1, 3))
        widths |= {} if leaves is None else {leaves: columns}
        shape = rows, columns
        costs = [
            random.integers(0, 50, shape).astype(float) for _ in range(draw(st.integers(1, 3)))
        ]
        ends.append((enters, leaves))
        tables.append([np.where(random.random(shape) < 0.1, np.inf, table) for table in costs])
    return Pieces(ends, tables)


@given(pieces())
def test_the_cheapest_variants_are_those_of_brute_force(parts: Pieces) -> None:
    chosen = _cheapest(parts.ends, parts.tables)
    costs = {
        variants: _least(parts, variants)
        for variants in product(*(range(len(table)) for table in parts.tables))
    }
    assert costs[tuple(chosen)] == min(costs.values())


def _least(parts: Pieces, variants: tuple[int, ...]) -> float:
    """The least cost of the chosen variants, by all layouts of all tensors."""
    tables = [parts.tables[s][v] for s, v in enumerate(variants)]
    sizes = {
        end: size
        for ends, table in zip(parts.ends, tables, strict=True)
        for end, size in zip(ends, table.shape, strict=True)
        if end is not None
    }
    return min(
        sum(
            float(table[layout.get(enters, 0), layout.get(leaves, 0)])
            for (enters, leaves), table in zip(parts.ends, tables, strict=True)
        )
        for values in product(*map(range, sizes.values()))
        for layout in [dict[str | None, int](zip(sizes, values, strict=True))]
    )


UNITY = """graph unity
input x: float32[n=64, i=784]
parameter a: float32[o=512, i=784]
parameter b: float32[o=10, i=512]
operator l1: p: float32[n=64, d=512] = linear(x, a)
operator r: q: float32[n=64, d=512] = relu(p)
operator l2: y: float32[n=64, d=10] = linear(q, b)
output y"""


def boundaries(text: str, cluster: Cluster) -> SegmentCosts:
    question = PlanRequest(graph=parse_graph(text), cluster=cluster, memory=Bytes(1 << 40))
    prices, operators = (
        CollectivePrices(Pricer(cluster, algorithm="best")),
        OperatorPricer(cluster.device),
    )
    return SegmentCosts(question, Options(), prices, operators)


def test_a_relu_is_fused_where_that_costs_nothing() -> None:
    cluster = Cluster.named("dgx-a100", node=1, gpu=2)
    variants = rewritten(parse_graph(UNITY), algebra(), boundaries(UNITY, cluster))
    assert [variant.steps for variant in variants] == [("linear-relu-fuse at q: x = x, w = a",)]
    assert [op.kind for op in variants[0].graph.operators] == ["linear_relu", "linear"]


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
    variants = rewritten(graph, algebra(), boundaries(text, Cluster.named("laptop", process=2)))
    assert variants
    for variant in variants:
        assert check(variant.graph) == ()
        assert canonical_hash(variant.graph) != canonical_hash(graph)
        assert len(variant.graph.operators) < len(graph.operators)
        assert variant.steps
        kinds = Counter(operator.kind for operator in variant.graph.operators)
        assert all(count % 3 == 0 for count in kinds.values())
    assert len({canonical_hash(other.graph) for other in variants}) == len(variants)


def test_what_is_excluded_is_not_used() -> None:
    cluster = Cluster.named("laptop", process=2)
    rules = algebra(("*fuse*", "*merge*"))
    for variant in rewritten(parse_graph(UNITY), rules, boundaries(UNITY, cluster)):
        assert not any("fuse" in step or "merge" in step for step in variant.steps)


@pytest.mark.parametrize("copy", [0, 1, 2])
def test_operators_that_stay_are_in_every_graph(copy: int) -> None:
    text = layered(3)
    stay = frozenset({(f"{copy}.b", "relu")})
    cluster = Cluster.named("laptop", process=2)
    variants = rewritten(
        parse_graph(text), algebra(), boundaries(text, cluster), lambda: False, stay
    )
    assert variants
    for variant in variants:
        assert stay <= {(operator.name, operator.kind) for operator in variant.graph.operators}


@pytest.mark.parametrize("after", [0, 1, 5])
def test_whoever_has_no_time_gets_graphs_all_the_same(after: int) -> None:
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    text = layered(2)
    variants = rewritten(
        parse_graph(text), algebra(), boundaries(text, Cluster.named("laptop", process=2)), enough
    )
    assert all(check(variant.graph) == () for variant in variants)
    assert after or not variants


BETWEEN = """graph between
input x: float32[n=8, d=16]
input m: int64[n=8, d=16]
parameter u: float32[o=16, i=16]
parameter v: float32[o=16, i=16]
operator t: t: float32[n=8, d=16] = _to_copy(m) {dtype="float32"}
operator t1: t1: float32[n=8, d=16] = exp(t)
operator t2: t2: float32[n=8, d=16] = neg(t1)
operator t3: t3: float32[n=8, d=16] = exp(t2)
operator t4: t4: float32[n=8, d=16] = neg(t3)
operator t5: t5: float32[n=8, d=16] = exp(t4)
operator a: a: float32[n=8, d=16] = linear(x, u)
operator b: b: float32[n=8, d=16] = relu(a)
operator c: c: float32[n=8, d=16] = mul(b, t5)
operator d: d: float32[n=8, d=16] = linear(c, v)
operator e: e: float32[n=8, d=16] = relu(d)
operator f: f: float32[n=8, d=16] = mul(e, t5)
operator s: s: float32[n=8, d=16] = neg(t5)
operator s1: s1: float32[n=8, d=16] = exp(s)
operator s2: s2: float32[n=8, d=16] = neg(s1)
operator s3: s3: float32[n=8, d=16] = exp(s2)
operator s4: s4: float32[n=8, d=16] = neg(s3)
operator s5: s5: float32[n=8, d=16] = exp(s4)
operator g: g: float32[n=8, d=16] = linear(f, u)
operator h: h: float32[n=8, d=16] = relu(g)
operator i: i: float32[n=8, d=16] = mul(h, s5)
operator j: j: float32[n=8, d=16] = linear(i, v)
operator k: k: float32[n=8, d=16] = relu(j)
operator l: l: float32[n=8, d=16] = mul(k, s5)
output l"""


def test_masks_may_lie_between_segments() -> None:
    """Segments that make a mask have no boundary that needs a gradient, before and in between."""
    graph = parse_graph(BETWEEN)
    ends = [boundary_tensors(segment) for segment in segments(graph, algebra())]
    assert ends.count((None, None)) == 2
    assert not all(pair == (None, None) for pair in ends)
    variants = rewritten(graph, algebra(), boundaries(BETWEEN, Cluster.named("laptop", process=2)))
    assert variants
    for variant in variants:
        assert check(variant.graph) == ()
        kinds = Counter(operator.kind for operator in variant.graph.operators)
        assert kinds["linear_relu"] + kinds["linear"] == 4
