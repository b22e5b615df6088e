"""Segments: where graphs are cut, what is alike, and that putting them together loses nothing."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.counts import tensors_requiring_grad
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.places import Match
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.search.joint.algebra.graph_segments import gradients_within, segments
from meshwright.search.joint.algebra.partition import cuts
from meshwright.search.joint.algebra.stitch import stitch_segments
from support.training_graphs import random_graph, tiny

RULES = algebra()
MODELS = ("xdl", "dlrm", "mlp", "candle-uno", "bert-large", "inception-v3", "llama3-8b", "nmt")


def slow_price(
    graph: OperatorGraph, matches: tuple[Match, ...], positions: tuple[int, ...], entries: int
) -> int | None:
    """What cuts cost by definition, with least = 2; None if they are not allowed."""
    needing = tensors_requiring_grad(graph)
    at = {op.name: n for n, op in enumerate(graph.operators)}
    price = 0
    for start, stop in pairwise(positions):
        inside = range(start, stop)
        entering, leaving = set(), set()
        for n, operator in enumerate(graph.operators):
            for name in operator.inputs:
                maker = graph.producers.get(name or "")
                if maker is not None and name in needing:
                    position = at[maker.name]
                    if n in inside and position < start:
                        entering.add(name)
                    if position in inside and n >= stop:
                        leaving.add(name)
        if len(entering) > entries or len(leaving) > 1:
            return None
        price += (stop - start) ** 2
    for cut in positions[1:-1]:
        for match in matches:
            places = [at[name] for name in match.operators]
            price += 4 * (min(places) < cut <= max(places))
    return price


@given(seed=st.integers(0, 10_000), entries=st.integers(1, 3))
def test_cuts_are_the_cheapest_of_all(seed: int, entries: int) -> None:
    graph = random_graph(Random(seed), 8)
    count = len(graph.operators)
    matches = Matcher(graph, RULES).matches
    chosen = cuts(graph, matches, 2, entries)
    assert all(b - a >= 2 for a, b in pairwise(chosen)) or len(chosen) == 2
    every = (
        (0, *inner, count)
        for k in range(count)
        for inner in combinations(range(1, count), k)
        if all(b - a >= 2 for a, b in pairwise((0, *inner, count))) or not inner
    )
    prices = [slow_price(graph, matches, positions, entries) for positions in every]
    cost = slow_price(graph, matches, chosen, entries)
    assert cost is not None
    assert cost == min(price for price in prices if price is not None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("entries", [1, 4])
def test_segments_are_graphs_and_make_the_whole(name: str, entries: int) -> None:
    graph = tiny(name)
    pieces = segments(graph, RULES, entries=entries)
    for segment in pieces:
        assert check(segment.graph) == ()
        assert len(segment.enters) <= entries
        assert len(segment.leaves) <= 1
        assert len(segment.graph.operators) >= 6 or len(pieces) == 1
    parts = [op for piece in pieces for op in piece.graph.operators]
    assert tuple(parts) == graph.operators
    assert stitch_segments(graph, pieces, [pieces[piece.alike].graph for piece in pieces]) == graph


@pytest.mark.parametrize("name", MODELS)
def test_a_segment_alone_needs_the_gradients_that_it_needs_in_the_whole(name: str) -> None:
    graph = tiny(name)
    needing = tensors_requiring_grad(graph)
    for segment in segments(graph, RULES):
        assert gradients_within(segment, segment.graph) == needing & segment.graph.tensors.keys()


def test_repeated_layers_are_alike() -> None:
    pieces = segments(tiny("bert-large"), RULES)
    assert len({segment.alike for segment in pieces}) < len(pieces)


MASKED = """graph masked
input x: float32[n=4, k=8]
input m: int64[n=4, k=8]
parameter w: float32[k=8, l=8]
operator t: t: float32[n=4, k=8] = _to_copy(m) {dtype="float32"}
operator a: a: float32[n=4, k=8] = linear(x, w)
operator b: b: float32[n=4, k=8] = mul(a, t)
operator c: c: float32[n=4, k=8] = linear(b, w)
operator d: d: float32[n=4, k=8] = mul(c, t)
output d"""


def test_a_mask_that_all_layers_read_does_not_prevent_a_cut() -> None:
    first, second = segments(parse_graph(MASKED), algebra(("*",)), least=2)
    assert [op.name for op in first.graph.operators] == ["t", "a"]
    assert first.graph.outputs == ("t", "a")
    assert (first.leaves, second.enters) == (("a",), ("a",))
    assert [tensor.name for tensor in second.graph.inputs] == ["a", "t"]


CHAIN = """graph chain
input x: float32[n=4, k=8]
parameter v: float32[k=8, l=8]
parameter w: float32[k=8, l=8]
operator a: a: float32[n=4, k=8] = tanh(x)
operator b: b: float32[n=4, k=8] = linear(a, v)
operator c: c: float32[n=4, k=8] = relu(b)
operator d: d: float32[n=4, k=8] = linear(c, w)
operator e: e: float32[n=4, k=8] = tanh(d)
output e"""


@pytest.mark.parametrize(("excluded", "first"), [((), 3), (("linear-relu-fuse",), 2)])
def test_a_cut_goes_round_a_match(excluded: tuple[str, ...], first: int) -> None:
    pieces = segments(parse_graph(CHAIN), algebra((*excluded, "*matmul*")), least=2)
    assert len(pieces[0].graph.operators) == first


def test_no_operators_no_segments() -> None:
    empty = parse_graph("graph empty\ninput x: float32[n=4]\noutput x")
    assert segments(empty, RULES) == ()
    assert stitch_segments(empty, (), ()) == empty
