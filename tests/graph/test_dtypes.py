"""A graph in another dtype: attributes that hold a dtype or the least number of one."""

from __future__ import annotations

import pytest
import torch

from meshwright.graph.cast import LARGEST, cast_graph
from meshwright.graph.text import parse_graph

GRAPH = parse_graph(
    """graph g
    input x: float32[n=4]
    input m: bool[n=4]
    operator a: a: float32[n=4] = masked_fill(x, m) {value=-3.4028234663852886e+38}
    operator b: b: complex64[n=4] = to(a) {dtype="complex64"}
    output b"""
)


@pytest.mark.parametrize("dtype", LARGEST)
def test_the_largest_number_is_that_of_the_dtype(dtype: str) -> None:
    assert torch.finfo(getattr(torch, dtype)).max == LARGEST[dtype]
    assert cast_graph(GRAPH, dtype).operators[0].attributes == (("value", -LARGEST[dtype]),)


@pytest.mark.parametrize(("dtype", "pairs"), [("float64", "complex128"), ("bfloat16", "complex64")])
def test_complex_numbers_are_as_wide_as_what_they_are_made_of(dtype: str, pairs: str) -> None:
    operator = cast_graph(GRAPH, dtype).operators[1]
    assert (operator.outputs[0].dtype, operator.attributes) == (pairs, (("dtype", pairs),))
