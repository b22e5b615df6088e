"""Automatic mixed precision inside of a model: the casts of `torch.autocast`, to the last digit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.example import Example, Step
from meshwright.capture.execute import execute, values_of
from meshwright.capture.export import capture
from meshwright.graph.check import check

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
            made = self.function(self, x)
        return made.float()


def example(function: Callable[..., Tensor], device: str = "cpu") -> Example:
    torch.manual_seed(0)
    inputs = torch.randn(4, SIZE)
    return Example(
        model=Mixed(function, device), inputs=(inputs,), loss=lambda y: y.square().mean()
    )


def left_and_entered(own: Mixed, x: Tensor) -> Tensor:
    y = own.linear(x)
    with torch.autocast("cpu", enabled=False):
        z = own.norm(y.float())
    made: Tensor = own.linear(z) + own.linear(y)
    return made


def frozen(own: Mixed, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = own.norm(x)
    made: Tensor = own.linear(y)
    return made


@pytest.mark.parametrize(
    "function",
    [
        lambda own, x: own.linear(own.linear(x).relu()),
        lambda own, x: torch.cat([x, own.norm(own.linear(x))]),
        lambda own, x: functional.mse_loss(own.linear(x), x),
        lambda own, x: torch.einsum("ij,kj->ik", x, own.linear.weight),
        lambda own, x: own.linear(x).add_(x.bfloat16()).mul_(2),
        lambda own, x: own.encoder(x[:, None]),
        left_and_entered,
        frozen,
    ],
)
def test_a_region_computes_what_pytorch_computes(function: Callable[..., Tensor]) -> None:
    own = example(function)
    graph = capture(own)
    assert check(graph) == ()
    values = values_of(own, graph)
    (loss,) = execute(graph, values).values()
    expected = Step(own)(own.inputs, own.named, own.targets)
    assert torch.equal(loss, expected)
    expected.backward()
    trained = {n: p.grad for n, p in own.model.named_parameters() if p.grad is not None}
    assert trained
    found = torch.autograd.grad(loss, [values[name] for name in trained])
    assert all(torch.equal(one, two) for one, two in zip(found, trained.values(), strict=True))


def test_a_weight_is_cast_once() -> None:
    graph = capture(example(lambda own, x: own.linear(own.linear(x))))
    cast = [own.inputs[0] for own in graph.operators if own.kind == "to"]
    assert cast.count("linear.weight") == cast.count("linear.bias") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda own, x: own.lstm(x)[0],
        lambda own, x: functional.triplet_margin_loss(own.linear(x), x, own.linear(2 * x)),
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
        capture(example(lambda own, x: own.linear(x), "cuda"))
