"""A graph for a larger batch is the one that the model would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.foundation.errors import InputError
from meshwright.graph.batch import with_batch
from meshwright.graph.check import check
from meshwright.graph.text import parse_graph
from support.baseline_graphs import convolutional, transformer


@given(st.integers(1, 6), st.integers(1, 5))
def test_a_graph_grows_to_what_it_would_be(batch: int, times: int) -> None:
    own = with_batch(transformer(batch=2 * batch), times)
    assert own == transformer(batch=2 * batch * times)
    assert with_batch(convolutional(batch=2 * batch), times) == convolutional(2 * batch * times)
    assert not check(own)


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
