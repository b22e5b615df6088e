"""Composite operators taken apart compute what they are, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture.export import exported
from meshwright.capture.load import load_graph
from meshwright.capture.operators.nodes import kind_of_node
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example
from meshwright.graph.operator_graph import Call, Spec
from meshwright.graph.pieces import splits_of
from meshwright.graph.validation import unknown_kinds
from support.composite_cases import COMPOSITES, Function

REAL = torch.float64


class Model(nn.Module):
    """A function of numbers that are learnt, of its input, and of matrices that are learnt."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.numbers = nn.Parameter(torch.randn(2, 3, 4, dtype=REAL))
        self.root = nn.Parameter(torch.randn(2, 4, 4, dtype=REAL))

    def forward(self, x: Tensor) -> Tensor:
        matrices = self.root @ self.root.transpose(1, 2) + 4 * torch.eye(4, dtype=REAL)
        return self.function(self.numbers, x, matrices)


def example_of(function: Function) -> Example:
    torch.manual_seed(0)
    return Example(model=Model(function), inputs=(torch.randn(2, 3, 4, dtype=REAL),))


@pytest.mark.parametrize("kind", COMPOSITES)
def test_parts_are_known_and_compute_the_same(kind: str) -> None:
    example = example_of(COMPOSITES[kind])
    graph = load_graph(example).graph
    assert unknown_kinds(graph) == ()
    output = execute(graph, values_of(example, graph))[graph.outputs[0]]
    expected = example.model(*example.inputs)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    learnt = list(example.model.parameters())
    both = [
        torch.autograd.grad(value.sum(), learnt, allow_unused=True, materialize_grads=True)
        for value in (output, expected)
    ]
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", COMPOSITES)
def test_the_cases_are_what_export_leaves(kind: str) -> None:
    nodes = exported(example_of(COMPOSITES[kind]), kind).graph.nodes
    assert kind in {kind_of_node(node) for node in nodes}


def test_what_has_parts_without_a_family_stays_whole() -> None:
    graph = load_graph(example_of(lambda y, x, m: torch.pdist(y[0]))).graph
    assert unknown_kinds(graph) == (("pdist", 1),)


def test_a_write_into_a_composite_view() -> None:
    def doubled(y: Tensor, x: Tensor, m: Tensor) -> Tensor:
        whole = y * 1
        whole.mT.clip_(-0.1, 0.1)
        whole[0].T.mul_(2)
        return whole

    example = example_of(doubled)
    graph = load_graph(example).graph
    output = execute(graph, values_of(example, graph))[graph.outputs[0]]
    torch.testing.assert_close(output, example.model(*example.inputs))


def test_a_write_under_a_mask_is_cut_as_its_mask_is() -> None:
    graph = load_graph(example_of(COMPOSITES["index_put"])).graph
    assert {"where"} == {own.kind for own in graph.operators} & {"where", "index_put"}
    x, mask, number = Spec("float32", (4, 3)), Spec("bool", (4, 3)), Spec("float32", ())
    whole = Call(kind="index_put", inputs=(x, mask, number), outputs=(x,))
    assert splits_of(whole) == (), "the mask spans two dims of x"


def test_parts_stand_in_the_layer_of_the_whole() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model(lambda y, x, m: nn.functional.glu(y))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x)
            return output

    graph = load_graph(Example(model=Outer(), inputs=(torch.zeros(2, 3, 4, dtype=REAL),))).graph
    assert {operator.layer for operator in graph.operators} == {"inner"}
