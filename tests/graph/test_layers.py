"""Repeated layers are found whatever stands around them, and only where the reading is alike."""

from __future__ import annotations

import pytest

from meshwright.graph.layers import LayerRepeat, layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph


def stack(count: int, skip: str = "{before}") -> OperatorGraph:
    """An embedding, layers of linear, gelu and a skip connection, a head.

    Every layer reads a mask that is made once.
    """
    lines = ["graph stack", "input ids: int64[n=4]", "parameter table: float32[v=9, d=8]"]
    lines += [f"parameter w{i}: float32[o=8, i=8]" for i in range(count)]
    lines += ["parameter head: float32[v=9, d=8]"]
    lines += ["operator e: h0: float32[n=4, d=8] = embedding(table, ids)"]
    lines += ["operator mask: mask: float32[n=4, d=8] = neg(h0)"]
    for i in range(count):
        where = f"@ layers.{i}"
        read = skip.format(before=f"h{i}", i=i)
        lines += [
            f"operator l{i}: l{i}: float32[n=4, d=8] = linear(h{i}, w{i}) {where}",
            f"operator g{i}: g{i}: float32[n=4, d=8] = gelu(l{i}) {where}",
            f"operator m{i}: m{i}: float32[n=4, d=8] = mul(g{i}, mask) {where}",
            f"operator a{i}: h{i + 1}: float32[n=4, d=8] = add(m{i}, {read}) {where}",
        ]
    lines += [f"operator head: out: float32[n=4, v=9] = linear(h{count}, head)", "output out"]
    return parse_graph("\n".join(lines))


@pytest.mark.parametrize("count", [2, 3, 24])
def test_layers_around_which_other_things_stand(count: int) -> None:
    assert layers(stack(count)) == (LayerRepeat(start=2, period=4, count=count),)


def test_a_run_is_cut_where_modules_begin() -> None:
    (repeat,) = layers(stack(6))
    graph = stack(6)
    for index in range(repeat.count):
        modules = {graph.operators[i].layer for i in repeat.layer(index)}
        assert modules == {f"layers.{index}"}


def test_layers_that_read_differently_are_not_alike() -> None:
    """Every odd layer skips from its own product instead of from the layer before."""
    text = str(stack(6))
    for i in (1, 3, 5):
        text = text.replace(f"add(m{i}, h{i})", f"add(m{i}, l{i})")
    assert layers(parse_graph(text)) == (LayerRepeat(start=2, period=8, count=3),)


def test_what_a_layer_reads_twice_must_be_one_thing() -> None:
    """Outside tensors may differ from layer to layer, but not how they coincide."""
    apart = stack(4, skip="h0")
    assert layers(apart) == (LayerRepeat(start=6, period=4, count=3),)


def test_nothing_repeats() -> None:
    graph = parse_graph(
        """graph g
        input x: float32[n=4]
        operator a: a: float32[n=4] = exp(x)
        operator b: b: float32[n=4] = neg(a)
        operator c: c: float32[n=4] = sin(b)"""
    )
    assert layers(graph) == ()
