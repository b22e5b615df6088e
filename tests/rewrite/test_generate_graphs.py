"""Laws of small graphs: the canonical form, the values, and their slow twins."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.notation import MisfitError
from meshwright.rewrite.generate.explore import ExploreJob, explore, extensions, nothing
from meshwright.rewrite.generate.field import (
    PRIME,
    TYPE,
    OperatorArrays,
    functions_of,
    settings,
    variable_value,
)
from meshwright.rewrite.generate.graph_terms import graph_of
from meshwright.rewrite.generate.graphs import (
    FIRST,
    VARIABLES,
    Graph,
    canonical,
    is_canonical,
    made_by,
    pack,
    placed,
    renamed,
    tensor,
    unpack,
    variables,
    width,
)
from meshwright.rewrite.generate.operator_templates import ALGEBRA, UNITY, Templates
from meshwright.rewrite.generate.values import Store
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import cut, run
from meshwright.rewrite.language.syntax import parse_term

LINES = tuple(own.line for own in DEFINITIONS.values())


@st.composite
def graphs(draw: st.DrawFn, templates: Templates = UNITY, most: int = 4) -> Graph:
    """Graphs of distinct nodes, whether operators fit or not."""
    nodes: list[tuple[int, ...]] = []
    operands = list(range(VARIABLES))
    for _ in range(draw(st.integers(1, most))):
        t = draw(st.integers(0, len(templates) - 1))
        template = templates[t]
        node = (t, *(draw(st.sampled_from(operands)) for _ in range(template.arity)))
        if template.commutes:
            node = (t, *sorted(node[1:]))
        if node not in nodes:
            operands += [tensor(len(nodes), o) for o in range(template.outputs)]
            nodes.append(node)
    return tuple(nodes)


def shuffled(graph: Graph, order: list[int], names: list[int], flip: bool) -> Graph:
    """A graph with nodes in another order, variables renamed and commuting operands flipped."""
    place = {old: new for new, old in enumerate(order)}

    def moved(r: int) -> int:
        return names[r] if r < FIRST else tensor(place[made_by(r)], (r - FIRST) % 2)

    nodes = []
    for j in order:
        operands = [moved(r) for r in graph[j][1:]]
        if flip and UNITY[graph[j][0]].commutes:
            operands.reverse()
        nodes.append((graph[j][0], *operands))
    return tuple(nodes)


@given(graphs(), st.data())
def test_order_names_and_commuting_operands_do_not_matter(
    graph: Graph, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(graph))))
    names = data.draw(st.permutations(range(VARIABLES)))
    other = shuffled(graph, order, names, data.draw(st.booleans()))
    assert canonical(other, UNITY)[0] == canonical(graph, UNITY)[0]


@given(graphs())
def test_the_canonical_form_is_the_graph_renamed(graph: Graph) -> None:
    form, ways = canonical(graph, UNITY)
    assert is_canonical(form, UNITY)
    assert is_canonical(form[:-1], UNITY)  # what makes every graph be met once
    assert variables(form) == list(range(len(ways[0])))
    for names in ways:
        assert canonical(renamed(form, names), UNITY) == (form, ways)
    assert placed(graph, UNITY)[:2] == (form, ways[0])
    assert unpack(pack(form, width(UNITY)), width(UNITY)) == form


def slow_form(graph: Graph, templates: Templates) -> Graph:
    """The least of all ways to write a graph, each tried."""
    best: Graph | None = None
    for order in permutations(range(len(graph))):
        place = {old: new for new, old in enumerate(order)}
        if any(place[made_by(r)] > place[j] for j in order for r in graph[j][1:] if r >= FIRST):
            continue
        for flips in product((False, True), repeat=len(graph)):
            names: dict[int, int] = {}
            written: list[tuple[int, ...]] = []
            for j in order:
                operands = [
                    r if r < FIRST else tensor(place[made_by(r)], (r - FIRST) % 2)
                    for r in graph[j][1:]
                ]
                if flips[j] and templates[graph[j][0]].commutes:
                    operands.reverse()
                written.append((graph[j][0], *(
                    names.setdefault(r, len(names)) if r < FIRST else r for r in operands
                )))  # fmt: skip
            best = min(best or tuple(written), tuple(written))
    assert best is not None
    return best


@given(graphs(most=3))
def test_the_canonical_form_is_the_least_of_all(graph: Graph) -> None:
    assert canonical(graph, UNITY)[0] == slow_form(graph, UNITY)


def test_extensions_are_all_canonical_graphs_that_fit() -> None:
    """Slow twin: every pair of nodes, put into canonical form."""
    store = Store(ALGEBRA)
    fast = {
        graph for [parent] in [[p] for p in extensions((), store)]
        for graph in extensions(parent, store)
    }  # fmt: skip
    slow: set[Graph] = set()
    for first in extensions((), store):
        operands = [*range(VARIABLES), tensor(0)]
        for t, template in enumerate(ALGEBRA):
            for chosen in product(operands, repeat=template.arity):
                graph = (*first, (t, *chosen))
                twice = {first[0], (first[0][0], *reversed(first[0][1:]))}
                if graph[1] in (twice if ALGEBRA[t].commutes else {first[0]}):
                    continue
                if store.places(graph) is not None:
                    slow.add(canonical(graph, ALGEBRA)[0])
    assert fast == slow


def test_chunks_hold_graphs_in_order_and_a_key_for_each_naming() -> None:
    job = ExploreJob(
        templates=UNITY, parents=nothing().parents, remaining=1, lesser=(), definitions=LINES
    )
    chunk = explore(job)
    assert list(chunk.graphs) == sorted(set(chunk.graphs))
    namings = [len(variables(unpack(packed, width(UNITY)))) for packed in chunk.graphs]
    assert len(chunk.keys) == 8 * sum((1, 1, 2)[n] for n in namings)


def assert_twins_agree(graph: Graph) -> int:
    """Fast and slow agree on what fits, on types and on values; how many nodes fit."""
    field, functions = OperatorArrays(), functions_of(DEFINITIONS)
    fast = {v: (TYPE, variable_value(v)) for v in range(VARIABLES)}
    slow = {v: cut(TYPE, variable_value(v).astype(float)) for v in range(VARIABLES)}
    for j, node in enumerate(graph):
        template = UNITY[node[0]]
        types = tuple(fast[r][0] for r in node[1:])
        output_types = field.types(template, types)
        try:
            operands = [slow[r] for r in node[1:]]
            expected = run(template.operator, settings(template), operands, functions=functions)
        except MisfitError:
            assert output_types is None
            return j
        assert output_types == tuple(output_shards.type for output_shards in expected)
        values = field.run(template, types, [fast[r][1] for r in node[1:]])
        for output, (type_, value, shards) in enumerate(
            zip(output_types, values, expected, strict=True)
        ):
            assert np.array_equal(value, shards.whole % PRIME)
            fast[tensor(j, output)] = type_, value
            slow[tensor(j, output)] = shards._replace(values=shards.values % PRIME)
    return len(graph)


@given(graphs(most=5))
def test_values_and_types_are_those_of_shards(graph: Graph) -> None:
    assert_twins_agree(graph)


@pytest.mark.parametrize(
    "text",
    [
        "linear(replicate[copies, 2](a), partition[0, 2](b))",
        "linear(partition[0, 2](a), replicate[copies, 2](b))",
        "linear(partition[copies, 2](concat[copies](a, b)), partition[0, 2](c))",
        "linear(partition[0, 2](a), partition[copies, 2](concat[copies](b, c)))",
        "linear(concat[copies](a, b), concat[copies](c, a))",
        "linear(partition[1, 2](a), partition[1, 2](b))",
        "linear(partition[0, 2](partition[1, 2](a)), replicate[copies, 2](partition[1, 2](b)))",
        "linear(linear(partition[1, 2](a), partition[1, 2](b)), replicate[copies, 2](c))",
        "linear(replicate[copies, 2](c), linear(partition[1, 2](a), partition[1, 2](b)))",
        "linear(linear(partition[1, 2](a), partition[1, 2](b)), "
        "partition[copies, 2](concat[copies](a, c)))",
        "add(linear(partition[1, 2](a), partition[1, 2](b)), replicate[copies, 2](c))",
        "relu(linear(partition[1, 2](a), partition[1, 2](b)))",
        "linear_relu(partition[0, 2](a), partition[copies, 2](concat[copies](b, c)))",
        "linear(replicate[copies, 2](replicate[copies, 2](a)), "
        "partition[0, 2](replicate[copies, 2](b)))",
    ],
)
def test_products_of_pieces_are_those_of_shards(text: str) -> None:
    graph = graph_of((parse_term(text),), {"a": 0, "b": 1, "c": 2}, UNITY)
    assert graph is not None
    assert assert_twins_agree(graph) == len(graph)
