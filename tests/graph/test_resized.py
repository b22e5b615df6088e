"""Sizes that are given without capturing are those that capture finds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.resized import with_sizes
from meshwright.graph.text import parse_graph
from meshwright.validate.published.shapes import (
    PublishedSizes,
    Structure,
    captured_template,
    resize_template,
)

GATED = {"hidden": 32, "heads": 8, "key_value_heads": 4, "width": 6, "sequence": 12,
         "vocabulary": 40, "inner": 24}  # fmt: skip
CASES: tuple[tuple[Structure, dict[str, int]], ...] = (
    ("gpt", {"hidden": 24, "heads": 4, "key_value_heads": 4, "sequence": 12, "vocabulary": 40,
             "inner": 96}),
    ("grouped gpt", {"hidden": 24, "heads": 4, "key_value_heads": 2, "sequence": 12,
                     "vocabulary": 40, "inner": 96}),
    ("llama", GATED),
    ("llama", GATED | {"key_value_heads": 8, "width": 4}),
    ("experts", GATED | {"experts": 8, "chosen": 2}),
    ("shared experts", GATED | {"experts": 8, "chosen": 2, "shared": 16}),
    ("latent experts", GATED | {"experts": 8, "chosen": 2, "shared": 16, "query_rank": 10,
                                "latent": 14, "rotary": 4}),
)  # fmt: skip


def graph_of(source: str, batch: int) -> OperatorGraph:
    return load_model(source, batch).graph


@pytest.mark.parametrize(("structure", "sizes"), CASES)
def test_a_shaped_model_is_the_captured_one(structure: Structure, sizes: dict[str, int]) -> None:
    shape = PublishedSizes(structure=structure, layers=4, sizes=tuple(sizes.items()))
    graph = resize_template(captured_template(structure, graph_of), shape, batch=6)
    captured = replace(graph_of(shape.source, 6), traced=None)
    assert graph.parameters == captured.parameters
    assert graph.operators == captured.operators
    assert graph == captured


def test_a_size_that_nobody_gives_is_refused() -> None:
    graph = parse_graph("graph g\ninput x: float32[n=13]\noperator y: y: float32[n=13] = exp(x)")
    with pytest.raises(InputError, match="has the size 13, for which no other is given"):
        with_sizes(graph, {17: 3})
