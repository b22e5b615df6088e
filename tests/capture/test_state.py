"""What a model's forward writes: refused where a later step would see it, let through where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.source.example import Example
from meshwright.graph.running_statistics import following

Function = Callable[[Any, Tensor], Any]


class Model(nn.Module):
    average: Tensor
    rates: Tensor

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.mean = nn.BatchNorm1d(4, momentum=None)
        self.instance = nn.InstanceNorm1d(3, track_running_stats=True)
        self.words = nn.Embedding(5, 4, max_norm=1.0)
        self.register_buffer("average", torch.ones(4))
        self.register_buffer("rates", torch.arange(4.0))
        self.queue = torch.zeros(4)
        self.steps, self.first, self.cache, self.hidden = 0, True, None, None
        self.history: list[Tensor] = []
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        total: Tensor = (self.function(self, y) * self.average).sum()
        return total


def example_of(function: Function) -> Example:
    return Example(model=Model(function), inputs=(torch.randn(3, 4),))


def averaged(model: Any, y: Tensor) -> Any:
    with torch.no_grad():
        model.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
    return y


def assigned(model: Any, y: Tensor) -> Any:
    model.average = 0.9 * model.average + 0.1 * y.detach().mean(0)
    return y


def given_data(model: Any, y: Tensor) -> Any:
    model.average.data = y.detach().mean(0)
    return y


def queued(model: Any, y: Tensor) -> Any:
    model.queue[:2] = y.detach()[0, :2]
    return y + model.queue


def shortened(model: Any, y: Tensor) -> Any:
    return y + model.words(torch.zeros(3, dtype=torch.int64))


def followed(model: Any, y: Tensor) -> Any:
    return model.instance(y[None])[0]


def averaged_over_all(model: Any, y: Tensor) -> Any:
    return model.mean(y)


def unused(model: Any, y: Tensor) -> Any:
    model.norm(2 * y).relu()
    return y


def counted(model: Any, y: Tensor) -> Any:
    model.steps += 1
    return y * model.steps


def scheduled(model: Any, y: Tensor) -> Any:
    model.steps += 1
    return y * 2 if model.steps > 1000 else y


def initialised(model: Any, y: Tensor) -> Any:
    if model.first:
        model.first = False
        return y - y.mean()
    return y


def recurrent(model: Any, y: Tensor) -> Any:
    if model.hidden is not None:
        y = y + model.hidden
    model.hidden = y.detach()
    return y


def remembered(model: Any, y: Tensor) -> Any:
    model.history.append(y.detach())
    return y + sum(model.history)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (averaged, r"writes into its buffer 'average' at .*test_state\.py:\d+"),
        (assigned, r"forward at .*test_state\.py:\d+ gives a new tensor to 'average'"),
        (given_data, "gives a new tensor to 'average'"),
        (queued, r"writes into its tensor 'queue' at .*test_state\.py:\d+"),
        (shortened, r"writes into its parameter 'words\.weight' at .*leave max_norm out"),
        (followed, r"buffer 'instance\.running_mean' at .*leave track_running_stats out"),
        (averaged_over_all, r"buffer 'mean\.num_batches_tracked' at .*give the .* a momentum"),
        (
            unused,
            r"more than once by 'norm', and what the call at .*test_state\.py:\d+ makes is not",
        ),
        (
            lambda model, y: y + model.norm.running_mean,
            r"reads 'norm\.running_mean' at .*test_state\.py:\d+, which a batch normalisation",
        ),
        (counted, r"forward reads 'steps', .* at .*test_state\.py:\d+"),
        (scheduled, r"forward reads 'steps', .* at .*test_state\.py:\d+"),
        (initialised, r"forward reads 'first', .* at .*test_state\.py:\d+"),
        (recurrent, r"forward reads 'hidden', .* at .*test_state\.py:\d+"),
        (remembered, r"forward reads 'history', .* at .*test_state\.py:\d+"),
    ],
)
def test_state_that_a_later_step_would_see(function: Function, sentence: str) -> None:
    example = example_of(function)
    with pytest.raises(InputError, match=sentence):
        capture(example)
    kept = vars(example.model)
    assert (kept["steps"], kept["first"], kept["hidden"], kept["history"]) == (0, True, None, [])


def only_counted(model: Any, y: Tensor) -> Any:
    model.steps += 1
    return y


def shown(model: Any, y: Tensor) -> Any:
    model.shown = y
    model.history.append(y.detach())
    return y


def cached(model: Any, y: Tensor) -> Any:
    if model.cache is None:
        model.cache = torch.cos(model.rates)
    return y * model.cache


def made_of_numbers(model: Any, y: Tensor) -> Any:
    total = torch.tensor(0.0)
    total += 2.0
    return y * total


@pytest.mark.parametrize("function", [only_counted, shown, cached, made_of_numbers])
def test_what_no_later_step_reads_is_let_through(function: Function) -> None:
    example = example_of(function)
    capture(example)
    kept = vars(example.model)
    assert (kept["steps"], kept["cache"], kept["history"]) == (0, None, [])
    assert "shown" not in kept


def without_gradients(model: Any, y: Tensor) -> Any:
    with torch.no_grad():
        other = model.norm(2 * y)
    return y + other


@pytest.mark.parametrize("function", [lambda model, y: model.norm(y), without_gradients])
def test_a_batch_normalisation_can_be_called_several_times(function: Function) -> None:
    calls = following(capture(example_of(function)))["norm.running_mean"]
    assert [call.name for call in calls] == ["norm.batch_norm", "norm.batch_norm_2"]


class Leaf(nn.Module):
    """A penalty on the gradient by its input, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_(True)
        (slope,) = torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)
        return slope.square().mean()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_forward_computes_is_never_taken_for_a_constant(device: str) -> None:
    with torch.device(device):
        example = Example(model=Leaf(), inputs=(torch.randn(3, 4),))
    with pytest.raises(InputError, match="leaf of autograd"):
        capture(example)


def test_modules_of_pytorch_are_named_and_no_line_of_ours() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0), nn.Linear(4, 1))
    example = Example(model=model, inputs=(torch.zeros(3, dtype=torch.int64),))
    with pytest.raises(InputError, match=r"parameter '0\.weight'; no later"):
        capture(example)


def test_a_spectral_norm_that_follows_its_weight_has_a_remedy_of_its_own() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
    with pytest.raises(InputError, match=r"buffer '0\.parametrizations.*; leave spectral_norm out"):
        capture(Example(model=model, inputs=(torch.randn(3, 4),)))


class Features(nn.Module):
    """A hook leaves what a layer gives, for a penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.features = nn.Linear(4, 4), dict[str, Tensor]()
        self.linear.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.features["linear"] = output

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.linear(x)
        return seen.sum() + torch.stack(list(self.features.values())).abs().mean()


class Before(Features):
    """Reads what the hook left in the call before."""

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.features)
        seen: Tensor = self.linear(x)
        return seen.sum() * (1 + count)


def test_what_this_call_has_left_can_be_read() -> None:
    graph = capture(Example(model=Features(), inputs=(torch.zeros(3, 4),)))
    assert any(operator.kind == "abs" for operator in graph.operators)
    with pytest.raises(InputError, match="reads 'features'"):
        capture(Example(model=Before(), inputs=(torch.zeros(3, 4),)))
