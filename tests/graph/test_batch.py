"""A graph for a larger batch is the one that the model would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.graph.batch import samples_of, with_batch
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.graph.workload import workload
from support.baseline_graphs import convolutional, transformer


@given(st.integers(1, 6), st.integers(1, 5))
def test_a_graph_grows_to_what_it_would_be(batch: int, times: int) -> None:
    grown = with_batch(transformer(batch=batch), times)
    assert grown == transformer(batch=batch * times)
    assert with_batch(convolutional(batch=batch), times) == convolutional(batch * times)
    assert not check(grown)


WORDS = """graph words
input w: int64[n={n}, s=6]
input t: int64[n={n}, s=6]
parameter e: float32[v=9, d=4]
operator x: x: float32[n={n}, s=6, d=4] = embedding(e, w)
operator a: a: float32[n={n}, s=6, d=4] = softmax(x) {{dim=1}}
operator f: f: int64[m={m}] = flatten(t)
output a
output f"""


@pytest.mark.parametrize("samples", [1, 2])
def test_a_single_sample_is_one_whose_positions_are_none(samples: int) -> None:
    graph = parse_graph(WORDS.format(n=samples, m=6 * samples))
    assert samples_of(graph) == samples
    assert workload(graph).tokens == 6 * samples
    assert with_batch(graph, 3) == parse_graph(WORDS.format(n=3 * samples, m=18 * samples))


GROWING = """graph growing
input x: float32[n={n}, t=3, d=8]
parameter c: float32[one=1, two=1, d=8]
operator z: z: float32[n={n}, one=1, d=8] = zeros() {{dtype="float32", size=[{n}, 1, 8]}}
operator e: e: float32[n={n}, one=1, d=8] = expand(c) {{size=[{n}, -1, -1]}}
operator s: s: float32[n={n}, one=1, d=8] = add(e, z)
operator j: j: float32[n={n}, u=4, d=8] = cat(s, x) {{dim=1}}
operator v: v: float32[n={n}, u=4, h=2, k=4] = view(j) {{size=[{n}, 4, 2, 4]}}
operator r: r: float32[n={n}, u=4, d=8] = reshape(v) {{shape=[{n}, 4, {last}]}}
output r"""


def test_views_and_what_is_expanded_to_every_sample_grow() -> None:
    """Also where a -1 would take any number of elements."""
    grown = with_batch(parse_graph(GROWING.format(n=6, last=-1)), 2)
    assert [tensor.shape for tensor in grown.definitions()] == [
        tensor.shape for tensor in parse_graph(GROWING.format(n=12, last=8)).definitions()
    ]
    assert not check(grown)


def test_a_fixed_batch_is_refused_by_name() -> None:
    graph = parse_graph("""graph g
    input x: float32[n=4, i=8]
    buffer m: float32[n=4, i=8]
    operator r: r: float32[n=4, i=8] = relu(x)
    operator y: y: float32[n=4, i=8] = add(r, m)
    output y""")
    with pytest.raises(InputError, match="operator 'y' has its batch fixed"):
        with_batch(graph, 2)


def test_a_graph_without_samples_is_refused() -> None:
    graph = parse_graph("""graph g
    input x: float32[]
    operator y: y: float32[] = relu(x)
    output y""")
    with pytest.raises(InputError, match="no operator of graph 'g' cuts samples"):
        with_batch(graph, 2)
