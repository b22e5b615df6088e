"""Exported programs as graphs: whole graphs as text, and names."""

from __future__ import annotations

from textwrap import dedent

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.export import capture
from meshwright.capture.source.example import Example
from meshwright.capture.zoo import entry
from meshwright.graph.operator_graph import OperatorGraph


def captured(model: nn.Module, *inputs: Tensor, name: str = "model") -> OperatorGraph:
    return capture(Example(model=model, inputs=inputs), name)


def assert_text(graph: OperatorGraph, expected: str) -> None:
    assert str(graph).splitlines() == dedent(expected).strip().splitlines()


class Gated(nn.Module):
    """A tied weight, a frozen one, one that nobody reads, and two results of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.project = nn.Linear(6, 12, bias=False)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.words.weight
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.unread = nn.Parameter(torch.ones(2))

    def forward(self, text: Tensor) -> Tensor:
        gate, value = self.project(self.words(text)).chunk(2, dim=-1)
        logits: Tensor = self.head(gate.sigmoid() * value * self.frozen)
        return logits


def test_parameters_and_loss() -> None:
    whole = torch.zeros(3, 5, dtype=torch.long)
    graph = capture(
        Example(
            model=Gated(),
            inputs=(whole,),
            loss=lambda logits, words: functional.cross_entropy(
                logits.flatten(0, 1), words.flatten()
            ),
            targets=(whole,),
        ),
        "gated",
    )
    assert_text(
        graph,
        """
        graph gated
        input text: int64[batch=3, position=5]
        input targets: int64[batch=3, position=5]
        frozen frozen: float32[d0=6]
        parameter unread: float32[d0=2]
        parameter words.weight (also head.weight): float32[row=10, feature=6]
        parameter project.weight: float32[out=12, in=6]
        operator words.embedding: words.embedding: float32[batch=3, position=5, feature=6] = embedding(words.weight, text) @ words
        operator project.linear: project.linear: float32[batch=3, position=5, feature=12] = linear(words.embedding, project.weight) @ project
        operator chunk: chunk.0: float32[batch=3, position=5, feature=6], chunk.1: float32[batch=3, position=5, feature=6] = chunk(project.linear) {chunks=2, dim=-1}
        operator sigmoid: sigmoid: float32[batch=3, position=5, feature=6] = sigmoid(chunk.0)
        operator mul: mul: float32[batch=3, position=5, feature=6] = mul(sigmoid, chunk.1)
        operator mul_2: mul_2: float32[batch=3, position=5, feature=6] = mul(mul, frozen)
        operator head.linear: head.linear: float32[batch=3, position=5, feature=10] = linear(mul_2, words.weight) @ head
        operator flatten: flatten: float32[batch*position=15, feature=10] = flatten(head.linear) {end_dim=1}
        operator flatten_2: flatten_2: int64[batch*position=15] = flatten(targets)
        operator cross_entropy_loss: cross_entropy_loss: float32[] = cross_entropy_loss(flatten, flatten_2)
        output cross_entropy_loss
        loss cross_entropy_loss
        """,  # noqa: E501
    )
    assert graph.parameter_count == 10 * 6 + 12 * 6 + 2


class Normalised(nn.Module):
    """Statistics that change in place, and a counter that no output reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        return functional.relu_(self.norm(self.conv(image))).mean((2, 3))


def test_batch_normalisation_in_training() -> None:
    assert_text(
        captured(Normalised(), torch.zeros(2, 3, 8, 8), name="normalised"),
        """
        graph normalised
        input image: float32[batch=2, channel=3, height=8, width=8]
        parameter conv.weight: float32[out=4, in=3, kernel_height=3, kernel_width=3]
        parameter norm.weight: float32[channel=4]
        parameter norm.bias: float32[channel=4]
        buffer norm.running_mean: float32[channel=4]
        buffer norm.running_var: float32[channel=4]
        operator conv.conv2d: conv.conv2d: float32[batch=2, channel=4, height=8, width=8] = conv2d(image, conv.weight) {padding=[1, 1]} @ conv
        operator norm.batch_norm: norm.batch_norm: float32[batch=2, channel=4, height=8, width=8] = batch_norm(conv.conv2d, norm.weight, norm.bias, norm.running_mean, norm.running_var) {eps=1e-05, momentum=0.1, training=true} @ norm
        operator relu: relu: float32[batch=2, channel=4, height=8, width=8] = relu(norm.batch_norm)
        operator mean: mean: float32[batch=2, channel=4] = mean(relu) {dim=[2, 3]}
        output mean
        """,  # noqa: E501
    )


def test_evaluation_is_captured_as_evaluation() -> None:
    graph = captured(Normalised().eval(), torch.zeros(2, 3, 8, 8))
    assert dict(graph.operators[1].attributes)["training"] is False


class Written(nn.Module):
    """A part of a tensor is written after the whole was viewed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        turned = y.t()
        y[:, 1] = 0
        return turned.relu()


def test_writes_become_new_tensors() -> None:
    """The view that was taken before the write is taken again after it."""
    graph = captured(Written(), torch.zeros(2, 4))
    relu = graph.operators[-1]
    turned = graph.producers[relu.inputs[0] or ""]
    written = graph.producers[turned.inputs[0] or ""]
    assert (relu.kind, turned.kind, written.kind) == ("relu", "t", "select_scatter")
    assert written.inputs[0] == "matmul"


class Undifferentiated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.linear(x).mean()
            shift = x.mean()
        total: Tensor = (self.linear(x) / scale + shift).sum()
        return total


def test_regions_without_gradient_give_detached_results() -> None:
    """What depends on no parameter needs no detaching."""
    graph = captured(Undifferentiated(), torch.zeros(2, 4))
    kinds = [operator.kind for operator in graph.operators]
    assert kinds == ["linear", "mean", "mean", "detach", "linear", "div", "add", "sum"]
    assert graph.operators[3].inputs == ("mean",)


def test_a_shared_module_is_named_under_its_callers() -> None:
    with torch.device("meta"):
        model = entry("llama3-8b")
        graph = capture(model.example(model.tiny, 2))
    rotations = {op.layer for op in graph.operators if op.layer.endswith("rotation")}
    assert rotations == {"layers.0.attention.rotation", "layers.1.attention.rotation"}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(
        self, pair: tuple[Tensor, Tensor], *more: Tensor, scale: Tensor, flag: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        total = pair[0] + pair[1] + sum(more)
        return total * self.weight, {"scaled": total * scale if flag else total}


def test_inputs_of_every_form_have_the_users_names() -> None:
    vectors = [torch.ones(3) for _ in range(5)]
    graph = capture(
        Example(
            model=Nested(),
            inputs=((vectors[0], vectors[1]), vectors[2], vectors[3]),
            named={"scale": vectors[4], "flag": True},
        )
    )
    assert [tensor.name for tensor in graph.inputs] == [
        *("pair.0", "pair.1", "more.0", "more.1"),
        "scale",
    ]
    assert graph.outputs == ("mul", "mul_2")
    assert graph.loss is None
