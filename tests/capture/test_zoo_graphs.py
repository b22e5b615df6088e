"""The zoo as graphs: flops, repeated layers, and text that reads back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meshwright.capture.example import Step
from meshwright.capture.export import capture
from meshwright.capture.zoo import ENTRIES, entry
from meshwright.capture.zoo.entry import Entry
from meshwright.graph.counts import product_flops
from meshwright.graph.layers import layers
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph

Shape = tuple[int, ...]


def convolution_backward(
    gradient: Shape, x: Shape, weight: Shape, *rest: Any, out_shape: Any = None
) -> int:
    """One product for each gradient wanted; PyTorch's own takes the weight's once a group."""
    wanted: tuple[bool, bool, bool] = rest[-1]
    return 2 * math.prod(gradient) * math.prod(weight[1:]) * sum(wanted[:2])


def grouped_product(rows: Shape, other: Shape, ends: Shape, out_shape: Any = None) -> int:
    """Each row with one matrix, or with another row, which gives a matrix."""
    return 2 * math.prod(rows) * other[-1]


CORRECTED = {
    torch.ops.aten.convolution_backward: convolution_backward,
    torch.ops.meshwright._grouped_mm: grouped_product,
    torch.ops.meshwright.grouped_outer: grouped_product,
}


def counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=CORRECTED)


def scores_anew(graph: OperatorGraph) -> int:
    """Fused attention computes its scores once more in the backward pass; unfused keeps them."""
    calls = map(graph.call, graph.operators)
    shapes = [
        (call.outputs[0].shape, query.shape, key.shape)
        for call in calls
        if call.kind == "scaled_dot_product_attention"
        for query, key in [call.inputs[:2]]
        if query is not None and key is not None
    ]
    return sum(2 * math.prod(out[:-1]) * key[-2] * query[-1] for out, query, key in shapes)


def full_graph(name: str) -> OperatorGraph:
    model = entry(name)
    with torch.device("meta"):
        return capture(model.example(model.sizes, model.batch), name)


@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_product_flops_are_those_of_torch(model: Entry[Any]) -> None:
    """On meta tensors, where PyTorch takes attention apart into its products."""
    with torch.device("meta"):
        example = model.example(model.tiny, 3)
    graph = capture(example)
    with counter() as forward:
        loss = Step(example)(example.inputs, example.named, example.targets)
    with counter() as backward:
        loss.backward()
    expected = forward.get_total_flops(), backward.get_total_flops() + scores_anew(graph)
    assert product_flops(graph) == expected


@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_text_reads_back(model: Entry[Any]) -> None:
    with torch.device("meta"):
        graph = capture(model.example(model.tiny, 2), model.name)
    assert parse_graph(str(graph)) == graph


REPEATED = {"bert-large": (24,), "llama3-8b": (32,), "vit-large": (24,)}


@pytest.mark.parametrize("name", REPEATED)
def test_layers_that_repeat(name: str) -> None:
    found = layers(full_graph(name))
    assert tuple(repeat.count for repeat in found) == REPEATED[name]
