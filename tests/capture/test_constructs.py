"""Constructs that models are written with: what is captured of them is what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.load import load_model
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example, Step
from meshwright.capture.trace.fake_tensors import with_fake_tensors
from meshwright.graph.validation import check

SIZE = 8


class Function(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear, x)


def outputs_of(example: Example) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What the graph gives, and what the model gives, by the same draws."""
    graph = capture(example)
    assert check(graph) == ()
    torch.manual_seed(1)
    outputs = tuple(execute(graph, values_of(example, graph)).values())
    torch.manual_seed(1)
    expected = Step(example)(example.inputs, example.named, example.targets)
    return outputs, tuple(pytree.tree_leaves(expected))


def assert_same(example: Example) -> None:
    """Outputs and gradients of the captured graph are those of the model."""
    computed, expected = outputs_of(example)
    torch.testing.assert_close(computed, expected)
    parameters = list(example.model.parameters())
    weights = [torch.randn_like(output) for output in expected]
    gradients = [
        torch.autograd.grad(outputs, parameters, weights, allow_unused=True)
        for outputs in (computed, expected)
    ]
    torch.testing.assert_close(*gradients)


def routed(linear: nn.Linear, x: Tensor) -> Tensor:
    weights, chosen = functional.softmax(linear(x), -1).topk(2)
    mixed = torch.zeros_like(x)
    for expert in range(SIZE):
        mixed = mixed + linear(x) * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return mixed


def squeezed(linear: nn.Linear, x: Tensor) -> Tensor:
    image = x[:, :, None, None].expand(-1, -1, 3, 3)
    pooled = linear(functional.adaptive_avg_pool2d(image, 1).view(x.shape[0], SIZE))
    return image * torch.sigmoid(pooled).view(x.shape[0], SIZE, 1, 1)


def warped(linear: nn.Linear, x: Tensor) -> Tensor:
    rows, columns = torch.meshgrid(
        torch.linspace(-1, 1, 4), torch.linspace(-1, 1, 2), indexing="ij"
    )
    grid = torch.stack((columns, rows), -1)[None].expand(x.shape[0], -1, -1, -1)
    image = linear(x).view(x.shape[0], 1, 4, 2)
    return functional.grid_sample(image, grid, align_corners=False)


def recurrent(linear: nn.Linear, x: Tensor) -> Tensor:
    state = torch.zeros(x.shape[0], SIZE)
    for _ in range(3):
        state = torch.tanh(linear(x) + state)
    ones = torch.from_numpy(np.ones(SIZE, dtype=np.float32))
    return state * torch.tensor(math.pi) + torch.eye(SIZE)[0] + ones


def sampled(linear: nn.Linear, x: Tensor) -> Tensor:
    mean: Tensor = linear(x)
    noise = torch.empty_like(mean).fill_(7.0).normal_()
    return mean + noise * functional.softplus(mean)


def moved(linear: nn.Linear, x: Tensor) -> Tensor:
    """A layer that is put where it is already, as routers of experts are."""
    output: Tensor = linear.to(x.dtype)(x)
    return output


def elbo(linear: nn.Linear, x: Tensor) -> Tensor:
    posterior = torch.distributions.Normal(linear(x), functional.softplus(x) + 0.1)
    prior = torch.distributions.Normal(0.0, 1.0)
    divergence = torch.distributions.kl_divergence(posterior, prior)
    return functional.mse_loss(posterior.rsample(), x) + divergence.mean()


@pytest.mark.parametrize(
    "function",
    [
        lambda linear, x: torch.vmap(lambda row: linear(row).softmax(0).cumsum(0))(x),
        lambda linear, x: torch.vmap(lambda row, w: row @ w, in_dims=(0, None))(x, linear.weight),
        lambda linear, x: torch.vmap(torch.func.grad(lambda row: linear(row).tanh().sum()))(x),
        lambda linear, x: torch.func.functional_call(linear, {"weight": linear.weight * 2}, (x,)),
        lambda linear, x: checkpoint(lambda tensor: linear(tensor).relu(), x, use_reentrant=False),
        lambda linear, x: functional.gumbel_softmax(linear(x), hard=True),
        lambda linear, x: torch.fft.fft(linear(x)).real,
        lambda linear, x: {"loss": linear(x).square().mean(), "logits": x},
        routed,
        squeezed,
        warped,
        recurrent,
        sampled,
        elbo,
        moved,
    ],
)
def test_a_construct_is_captured(function: Callable[[nn.Linear, Tensor], Any]) -> None:
    torch.manual_seed(0)
    assert_same(Example(model=Function(function), inputs=(torch.randn(4, SIZE),)))


def attended(linear: nn.Linear, x: Tensor) -> Tensor:
    query = linear(x).view(1, 2, 2, SIZE)
    attention = flex_attention(query, query, query, score_mod=_nearer)
    assert isinstance(attention, Tensor)
    return attention


def _nearer(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return score + 0.1 * (row - column)


def attended_by_hand(linear: nn.Linear, x: Tensor) -> Tensor:
    query: Tensor = linear(x).view(1, 2, 2, SIZE)
    places = torch.arange(2)
    bias = 0.1 * (places[:, None] - places[None, :])
    scores: Tensor = query @ query.transpose(-2, -1) / math.sqrt(SIZE) + bias
    return scores.softmax(-1) @ query


def test_flex_attention_is_captured_as_its_operators() -> None:
    """PyTorch itself does not train it on a CPU, so that it is compared with a way by hand."""
    torch.manual_seed(0)
    model, x = Function(attended), torch.randn(4, SIZE)
    graph = capture(Example(model=model, inputs=(x,)))
    (output,) = execute(graph, values_of(Example(model=model, inputs=(x,)), graph)).values()
    torch.testing.assert_close(output, attended_by_hand(model.linear, x))


def test_nothing_is_compiled() -> None:
    compiled = torch.compile(torch.sin, backend="eager")
    example = Example(
        model=Function(lambda linear, x: compiled(linear(x))), inputs=(torch.randn(4, SIZE),)
    )
    assert [operator.kind for operator in capture(example).operators] == ["linear", "sin"]


def test_gradients_of_a_sparse_embedding_are_dense() -> None:
    model, words = nn.Embedding(SIZE, 4, sparse=True), torch.tensor([[1, 2], [2, 3]])
    example = Example(model=model, inputs=(words,))
    (output,), (expected,) = outputs_of(example)
    (dense,) = torch.autograd.grad(output.sum(), [model.weight])
    (sparse,) = torch.autograd.grad(expected.sum(), [model.weight])
    assert not dense.is_sparse
    torch.testing.assert_close(dense, sparse.to_dense())


def test_a_loss_has_weights_of_its_own() -> None:
    torch.manual_seed(0)
    assert_same(
        Example(
            model=nn.Linear(SIZE, 3),
            inputs=(torch.randn(4, SIZE),),
            loss=nn.CrossEntropyLoss(weight=torch.rand(3)),
            targets=(torch.tensor([0, 1, 2, 0]),),
        )
    )


class Scaled(nn.Module):
    """Keeps a tensor as a plain attribute, and makes one in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.tied = self.linear
        self.scales = [torch.ones(SIZE)]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tied(x) * self.scales[0] + torch.arange(SIZE)
        return y


def test_meta_tensors_lie_on_the_cpu_while_they_are_traced() -> None:
    with torch.device("meta"):
        example = Example(model=Scaled(), inputs=(torch.randn(4, SIZE),))
    before = dict(example.model.named_parameters())
    step = Step(example)
    with with_fake_tensors(step, example.inputs) as inputs:
        assert all(isinstance(value, Tensor) and value.device.type == "cpu" for value in inputs)
        assert {parameter.device.type for parameter in step.parameters()} == {"cpu"}
    graph = capture(example)
    assert [operator.kind for operator in graph.operators] == ["linear", "mul", "arange", "add"]
    assert all(parameter is before[name] for name, parameter in example.model.named_parameters())


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda linear, x: torch.nonzero(linear(x)).sum(), "depends on data"),
        (
            lambda linear, x: nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([2])).data,
            "packs sequences",
        ),
        (
            lambda linear, x: torch.autograd.grad(
                linear(y := x.detach().requires_grad_()).sum(), y, create_graph=True
            )[0],
            "makes a leaf of autograd",
        ),
        (lambda linear, x: linear(x) * (x.view(torch.int32) & 1), "bits of one dtype"),
    ],
)
def test_what_no_trace_tells_is_a_sentence(
    function: Callable[[nn.Linear, Tensor], Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        capture(Example(model=Function(function), inputs=(torch.randn(4, SIZE),)))


class Whole(nn.Module):
    """A layer with a part that no trace tells of."""

    adjacent: Tensor

    def __init__(self, part: nn.Module | None = None, adjacent: Tensor | None = None) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(SIZE, SIZE), part
        self.register_buffer("adjacent", adjacent)

    def forward(self, x: Tensor) -> Any:
        hidden = self.linear(x)
        return torch.sparse.mm(self.adjacent, hidden) if self.part is None else self.part(hidden)


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nested.nested_tensor(list(x)).to_padded_tensor(0.0)


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.sparse.mm(x.to_sparse_csr(), x.T)
        return product


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (lambda: Whole(adjacent=torch.eye(4).to_sparse()), r"'adjacent' .* is sparse \(sparse_coo"),
        (lambda: Whole(torch.jit.script(nn.Linear(SIZE, SIZE))), "'part' .* compiled by torch.jit"),
        (lambda: Whole(Nested()), "makes nested tensors at"),
        (lambda: Whole(Rows()), "computes with sparse tensors"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_construct_that_is_not_captured_is_named(
    model: Callable[[], nn.Module], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        capture(Example(model=model(), inputs=(torch.randn(4, SIZE),)))
    assert "without Meshwright" not in caught.value.remedy


def test_a_broken_program_is_a_sentence_and_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.pt2"
    path.write_bytes(b"no program")
    with pytest.raises(InputError, match="is not a program that this PyTorch can load"):
        load_model(str(path))
    assert capfd.readouterr() == ("", "")
