"""The zoo as graphs: flops, repeated layers, and text that reads back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meshwright.capture.export import capture
from meshwright.capture.source.example import Example, Step
from meshwright.capture.zoo import ENTRIES, entry
from meshwright.capture.zoo.entry import Entry
from meshwright.cost.figures import model_figures
from meshwright.cost.memory import training_memory
from meshwright.cost.zoo_figures import figures_of, zoo_figures
from meshwright.graph.counts import product_flops
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check, unknown_kinds

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


class Traced(NamedTuple):
    example: Example
    graph: OperatorGraph


@pytest.fixture(scope="module", params=ENTRIES, ids=lambda model: model.name)
def traced(request: pytest.FixtureRequest) -> Traced:
    """Each tiny model on meta tensors, where PyTorch takes attention apart into its products."""
    model: Entry[Any] = request.param
    with torch.device("meta"):
        example = model.example(model.tiny, 3)
    return Traced(example, capture(example, model.name))


def test_every_operator_is_known(traced: Traced) -> None:
    assert check(traced.graph) == ()
    assert unknown_kinds(traced.graph) == ()
    assert traced.graph.outputs == (traced.graph.loss,)


def test_product_flops_are_those_of_torch(traced: Traced) -> None:
    example, graph = traced
    with counter() as forward:
        loss = Step(example)(example.inputs, example.named, example.targets)
    with counter() as backward:
        loss.backward()
    expected = forward.get_total_flops(), backward.get_total_flops() + scores_anew(graph)
    assert product_flops(graph) == expected


def test_text_and_json_read_back(traced: Traced) -> None:
    alone = msgspec.structs.replace(traced.graph, traced=None)
    assert parse_graph(str(alone)) == alone
    encoded = msgspec.json.encode(traced.graph)
    assert msgspec.json.decode(encoded, type=OperatorGraph) == traced.graph


REPEATED = {
    "bert-large": (24,),
    "llama3-8b": (32,),
    "lenet": (),
    "candle-uno": (2, 2, 7, 3),
    "alexnet": (),
}


@pytest.mark.parametrize("name", REPEATED)
def test_full_size(name: str) -> None:
    """No weight is in memory; every parameter is there; the layers are recognised."""
    model = entry(name)
    with torch.device("meta"):
        graph = capture(model.example(model.sizes, model.batch), name)
    assert check(graph) == ()
    assert graph.parameter_count == model.parameters
    assert tuple(repeat.count for repeat in layers(graph)) == REPEATED[name]
    kept = figures_of(name)
    assert (kept.batch, kept.figures) == (model.batch, model_figures(graph))
    assert kept.memory["sgd"] == training_memory(graph, "sgd")


def test_kept_figures_are_those_of_the_zoo() -> None:
    """What `meshwright models` lists; `benchmarks/zoo_figures.py` computes it anew."""
    kept = {name: entry.figures.parameters for name, entry in zoo_figures().items()}
    assert kept == {model.name: model.parameters for model in ENTRIES}
