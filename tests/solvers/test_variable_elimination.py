"""What everything costs between two nodes: brute force where eliminations suffice, else below; and
always what the slow twin says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.solvers.variable_elimination import (
    CostGraph,
    Costs,
    between,
    bounded,
    cheapest,
    cost,
)
from support import slow_elimination as slow

MOST_NODES = 7


def pairs_of(series: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Series-parallel graphs between nodes 0 and 1: an edge, in which nodes are put, and twins."""
    return series.map(_grown)


def _grown(moves: list[int]) -> list[tuple[int, int]]:
    """Each number takes an edge by its place and puts a node into it, odd ones beside it."""
    edges, nodes = [(0, 1)], 2
    for move in moves:
        i, j = edges[(move // 2) % len(edges)]
        if not move % 2:
            edges.remove((i, j))
        edges += [(i, nodes), (j, nodes)]
        nodes += 1
    return edges


@st.composite
def weighted(
    draw: st.DrawFn, edges: st.SearchStrategy[list[tuple[int, int]]], infinite: bool = False
) -> CostGraph:
    """Whole costs, so that sums in any order are equal; some edges may have no way at all, and some
    share their table with others.
    """
    pairs = sorted({(min(pair), max(pair)) for pair in draw(edges)})
    count = max((j for _, j in pairs), default=1) + 1
    sizes = [draw(st.integers(1, 3)) for _ in range(count)]
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> Costs:
        costs = random.integers(0, 20, shape).astype(np.float64)
        return np.where(random.random(shape) < 0.1, np.inf, costs) if infinite else costs

    known: dict[tuple[int, int], Costs] = {}
    edges_of = {}
    for i, j in pairs:
        shape = sizes[i], sizes[j]
        if shape not in known or random.random() < 0.5:
            known[shape] = drawn(*shape)
        edges_of[i, j] = known[shape]
    return CostGraph([drawn(size) for size in sizes], edges_of)


SERIES = weighted(pairs_of(st.lists(st.integers(0, 30), max_size=MOST_NODES - 2)))
ENDLESS = weighted(pairs_of(st.lists(st.integers(0, 30), max_size=MOST_NODES - 2)), infinite=True)
PAIRS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]),
    min_size=1,
    max_size=15,
)
DENSE, BLOCKED = weighted(PAIRS), weighted(PAIRS, infinite=True)
MANY = weighted(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda pair: pair[0] != pair[1]),
        min_size=20,
        max_size=60,
    )
)


def brute(graph: CostGraph, one: int, other: int) -> Costs:
    """The least cost of all choices with each pair of choices at two nodes."""
    least = np.full((len(graph.nodes[one]), len(graph.nodes[other])), np.inf)
    for choice in every(graph):
        at = choice[one], choice[other]
        least[at] = min(least[at], cost(graph, choice))
    return least


def every(graph: CostGraph) -> Iterator[tuple[int, ...]]:
    return product(*(range(len(costs)) for costs in graph.nodes))


@given(SERIES)
def test_between_the_ends_of_series_and_parallel_parts_it_is_brute_force(graph: CostGraph) -> None:
    assert np.array_equal(between(graph, 0, 1), brute(graph, 0, 1))
    assert np.array_equal(between(graph, 1, 0), brute(graph, 1, 0))


@given(ENDLESS)
def test_what_cannot_be_stays_infinite(graph: CostGraph) -> None:
    assert np.array_equal(between(graph, 0, 1), brute(graph, 0, 1))


@given(DENSE, st.data())
def test_between_any_nodes_it_is_never_above_the_least(
    graph: CostGraph, data: st.DataObject
) -> None:
    nodes = st.integers(0, len(graph.nodes) - 1)
    one, other = data.draw(nodes), data.draw(nodes)
    table = between(graph, one, other)
    least = brute(graph, one, other)
    if one == other:
        table, least = table[:, 0], np.diagonal(least)
    assert (table <= least).all()
    if cheapest(graph).left == 0 and one == other:
        assert np.array_equal(table, least)


def test_a_node_and_itself_leave_one_column() -> None:
    graph = CostGraph([np.array([3.0, 1.0]), np.array([0.0, 5.0])], {(0, 1): np.eye(2)})
    assert between(graph, 0, 0).tolist() == [[4.0], [1.0]]


def test_what_is_loosened_counts_as_its_least() -> None:
    """Four nodes joined each with each: the edge whose costs differ least is given up."""
    edges = {(i, j): np.array([[0.0, 9.0], [9.0, 0.0]]) for j in range(4) for i in range(j)}
    edges[2, 3] = np.array([[3.0, 2.0], [2.0, 3.0]])
    graph = CostGraph([np.zeros(2)] * 4, edges)
    assert brute(graph, 0, 1).tolist() == [[3.0, 29.0], [29.0, 3.0]]
    assert between(graph, 0, 1).tolist() == [[2.0, 29.0], [29.0, 2.0]]


@given(SERIES)
def test_the_bound_of_series_and_parallel_parts_is_the_least_cost(graph: CostGraph) -> None:
    least, choice = bounded(graph)
    assert least == min(cost(graph, candidate) for candidate in every(graph)) == cost(graph, choice)


@given(DENSE)
def test_a_bound_is_never_above_the_least(graph: CostGraph) -> None:
    assert bounded(graph)[0] <= min(cost(graph, choice) for choice in every(graph))


@given(st.one_of(SERIES, DENSE, MANY), st.data())
def test_compiled_eliminations_are_the_slow_ones(graph: CostGraph, data: st.DataObject) -> None:
    nodes = st.integers(0, len(graph.nodes) - 1)
    one, other = data.draw(nodes), data.draw(nodes)
    assert cheapest(graph) == slow.cheapest(graph)
    assert bounded(graph) == slow.bounded(graph)
    assert np.array_equal(between(graph, one, other), slow.between(graph, one, other))


@given(BLOCKED, st.data())
def test_what_cannot_be_is_loosened_as_slowly(graph: CostGraph, data: st.DataObject) -> None:
    nodes = st.integers(0, len(graph.nodes) - 1)
    one, other = data.draw(nodes), data.draw(nodes)
    assert bounded(graph)[0] == slow.bounded(graph)[0]
    assert np.array_equal(between(graph, one, other), slow.between(graph, one, other))
