"""Automatic mixed precision inside of a model: the casts of `torch.autocast`, to the last digit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example, Step
from meshwright.graph.validation import check

SIZE = 8


class Mixed(nn.Module):
    """A function in a region, and its result in float32."""

    def __init__(self, function: Callable[..., Tensor], device: str = "cpu") -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)
        self.lstm = nn.LSTM(SIZE, SIZE)
        self.encoder = nn.TransformerEncoderLayer(SIZE, 2, SIZE, 0.0, batch_first=True)
        self.function, self.device = function, device

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            output = self.function(self, x)
        return output.float()


def example(function: Callable[..., Tensor], device: str = "cpu") -> Example:
    torch.manual_seed(0)
    inputs = torch.randn(4, SIZE)
    return Example(
        model=Mixed(function, device), inputs=(inputs,), loss=lambda y: y.square().mean()
    )


def left_and_entered(model: Mixed, x: Tensor) -> Tensor:
    y = model.linear(x)
    with torch.autocast("cpu", enabled=False):
        z = model.norm(y.float())
    output: Tensor = model.linear(z) + model.linear(y)
    return output


def frozen(model: Mixed, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = model.norm(x)
    output: Tensor = model.linear(y)
    return output


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: model.linear(model.linear(x).relu()),
        lambda model, x: torch.cat([x, model.norm(model.linear(x))]),
        lambda model, x: functional.mse_loss(model.linear(x), x),
        lambda model, x: torch.einsum("ij,kj->ik", x, model.linear.weight),
        lambda model, x: model.linear(x).add_(x.bfloat16()).mul_(2),
        lambda model, x: model.encoder(x[:, None]),
        left_and_entered,
        frozen,
    ],
)
def test_a_region_computes_what_pytorch_computes(function: Callable[..., Tensor]) -> None:
    case = example(function)
    graph = capture(case)
    assert check(graph) == ()
    values = values_of(case, graph)
    (loss,) = execute(graph, values).values()
    expected = Step(case)(case.inputs, case.named, case.targets)
    assert torch.equal(loss, expected)
    expected.backward()
    trained = {n: p.grad for n, p in case.model.named_parameters() if p.grad is not None}
    assert trained
    gradients = torch.autograd.grad(loss, [values[name] for name in trained])
    assert all(torch.equal(one, two) for one, two in zip(gradients, trained.values(), strict=True))


def test_a_weight_is_cast_once() -> None:
    graph = capture(example(lambda model, x: model.linear(model.linear(x))))
    cast = [operator.inputs[0] for operator in graph.operators if operator.kind == "to"]
    assert cast.count("linear.weight") == cast.count("linear.bias") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: model.lstm(x)[0],
        lambda model, x: functional.triplet_margin_loss(model.linear(x), x, model.linear(2 * x)),
    ],
)
def test_what_casts_inside_of_an_operator_is_refused(function: Callable[..., Tensor]) -> None:
    with pytest.raises(InputError, match="casts inside of it") as caught:
        capture(example(function))
    assert "end the region before it" in caught.value.remedy


def test_a_region_of_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with GPUs, whose regions are not turned off."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with pytest.raises(InputError, match="autocast\\('cuda'\\) while its tensors lie on 'cpu'"):
        capture(example(lambda model, x: model.linear(x), "cuda"))
