"""Operators of a user's own: kernels as Python functions, and a model that calls PyTorch operators
of a library of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


def scaled(x: Tensor, w: Tensor, s: float) -> Tensor:
    return s * (x @ w.T)


def weighted(x: Tensor, g: Tensor) -> Tensor:
    return (x * g[..., None]).sum(-2)


def gaps(x: Tensor, y: Tensor) -> Tensor:
    return ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)


def normed(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True)) * g


def spread(x: Tensor, n: int) -> Tensor:
    return x[..., None].expand(*x.shape, n).clone()


def ramp(x: Tensor, n: int) -> Tensor:
    return x[..., None] * torch.arange(n, dtype=x.dtype)


def rectified(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w.T)


@torch.library.custom_op("meshwright_tests::swiglu", mutates_args=())
def library_swiglu(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


@torch.library.custom_op("meshwright_tests::scaled", mutates_args=())
def library_scaled(x: Tensor, w: Tensor, s: float = 2.0) -> Tensor:
    return s * (x @ w.T)


@torch.library.custom_op("meshwright_tests::bare", mutates_args=())
def library_bare(x: Tensor) -> Tensor:
    return torch.tanh(x)


library_swiglu.register_fake(lambda x, y: torch.empty_like(x))
library_scaled.register_fake(lambda x, w, s=2.0: x.new_empty(*x.shape[:-1], w.shape[0]))
library_bare.register_fake(lambda x: torch.empty_like(x))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.scale = inputs[2] if len(inputs) > 2 else None


def _swiglu_gradient(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, y = context.saved_tensors
    slope = torch.sigmoid(x)
    return gradient * y * (slope + x * slope * (1 - slope)), gradient * x * slope


def _scaled_gradient(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, w = context.saved_tensors
    scaled = context.scale * gradient
    return scaled @ w, scaled.flatten(0, -2).T @ x.flatten(0, -2), None


library_swiglu.register_autograd(_swiglu_gradient, setup_context=_keep)
library_scaled.register_autograd(_scaled_gradient, setup_context=_keep)


class Gated(nn.Module):
    """The feed-forward block of Llama with its own gate and its own last product."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Parameter(torch.randn(width, hidden) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = library_swiglu(self.gate(x), self.up(x))
        output: Tensor = library_scaled(gated, self.down)
        return output


class Tripled(nn.Module):
    """Calls an operator with an attribute that is not its default."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = library_scaled(x, self.weight, 3.0)
        return output


class Plain(nn.Module):
    """The same gate, written with PyTorch's own operators."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


class Bare(nn.Module):
    """Trains through an operator without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = library_bare(self.first(x))
        return output


def gated(batch: int = 8, width: int = 32, hidden: int = 64) -> tuple[Any, ...]:
    return _example(Gated(width, hidden), batch, width)


def plain(batch: int = 8, width: int = 32, hidden: int = 64) -> tuple[Any, ...]:
    return _example(Plain(width, hidden), batch, width)


def tripled(batch: int = 4) -> tuple[Any, ...]:
    return _example(Tripled(), batch, 8)


def bare(batch: int = 4) -> tuple[Any, ...]:
    return _example(Bare(), batch, 8)


def _example(model: nn.Module, batch: int, width: int) -> tuple[Any, ...]:
    return model, (torch.randn(batch, width),), functional.mse_loss, (torch.randn(batch, width),)
