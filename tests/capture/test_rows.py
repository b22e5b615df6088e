"""Rows that are merged only for a product stay apart, and the function stays what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture.load import load_graph
from meshwright.capture.reference_executor import execute
from meshwright.capture.source.example import Example
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.units import units


class Between(nn.Module):
    """A product between two changes of shape."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]):
        super().__init__()
        self.before, self.after, self.product = before, after, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.product(self.before(x)))


def captured(model: nn.Module, *shape: int) -> tuple[OperatorGraph, Tensor]:
    torch.manual_seed(0)
    x = torch.rand(*shape)
    return load_graph(Example(model=model, inputs=(x,))).graph, x


def shapes(graph: OperatorGraph, kind: str) -> list[tuple[int, ...]]:
    return [operator.outputs[0].spec.shape for operator in graph.operators if operator.kind == kind]


def test_attention_of_pytorch_cuts_samples_everywhere() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    graph, _ = captured(layer, 4, 6, 8)
    assert (6, 4, 8) in shapes(graph, "linear"), "positions and samples apart"
    for unit in units(graph):
        assert unit.samples is not None
        assert min(unit.extents[unit.splits[unit.samples].name]) == 4


@pytest.mark.parametrize(
    ("before", "after", "products"),
    [
        (lambda x: x.reshape(10, 6), lambda y: y.view(5, 2, 4), [(5, 2, 4)]),
        (lambda x: x.reshape(10, 6), lambda y: y.view(2, 5, 4), [(10, 4)]),
        (lambda x: x.reshape(10, 6), lambda y: y.view(5, 2, 2, 2), [(10, 4)]),
        (lambda x: x.reshape(10, 6), lambda y: y.relu().view(5, 2, 4), [(10, 4)]),
        (lambda x: x.reshape(10, 6), lambda y: y.view(5, 2, 4) + y.sum(), [(10, 4)]),
        (lambda x: x.reshape(5, 2, 6), lambda y: y.view(10, 4), [(5, 2, 4)]),
    ],
)
def test_the_function_stays_what_it_is(
    before: Callable[[Tensor], Tensor],
    after: Callable[[Tensor], Tensor],
    products: list[tuple[int, ...]],
) -> None:
    model = Between(before, after)
    graph, x = captured(model, 5, 2, 3, 2)
    assert shapes(graph, "linear") == products
    values = {graph.inputs[0].name: x, **dict(model.named_parameters())}
    torch.testing.assert_close(execute(graph, values)[graph.outputs[0]], model(x))
