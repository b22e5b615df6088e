"""Synchronised batch norm (as SyncBatchNorm): statistics all-reduced in both passes. Enters: a
piece, and what sums over the devices. Leaves: the normalised piece, through which gradients flow
back.

With n elements in all, mean m = Σx / n, variance v = Σx² / n - m², r = 1 / sqrt(v + ε) and
h = (x - m) r,
    y  = h w + b
    dx = r (g - Σg / n - h Σ(g h) / n)     with g = w dy
    dw = Σ h dy,  db = Σ dy                over this piece: the sum over devices follows elsewhere
Both passes sum over the devices once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from meshwright.capture.execution.sharded_softmax import Reduced


class Norm(NamedTuple):
    """What is normalised over."""

    dims: tuple[int, ...]
    elements: int
    """Elements that one mean is over, on all devices."""
    epsilon: float
    summed: Reduced


class _Normalised(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        real = x.to(torch.promote_types(x.dtype, torch.float32))
        total, square = _totals(real, real, norm)
        mean = total / norm.elements
        variance = (square / norm.elements - mean.square()).clamp_min(0.0)
        rate = torch.rsqrt(variance + norm.epsilon)
        output = (real - mean) * rate
        ctx.save_for_backward(output, rate)
        ctx.norm, ctx.dtype = norm, x.dtype
        ctx.mark_non_differentiable(mean, variance)
        return output.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None]:
        output, rate = ctx.saved_tensors
        norm: Norm = ctx.norm
        gradient = arriving[0].to(output.dtype)
        total, along = _totals(gradient, output, norm)
        centred = gradient - total / norm.elements
        return (rate * (centred - output * along / norm.elements)).to(ctx.dtype), None


def _totals(one: Tensor, other: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """The sums of one factor and of the product, over all devices."""
    sums = [part.sum(norm.dims, keepdim=True) for part in (one, one * other)]
    total, product = norm.summed(torch.stack(sums)).unbind()
    return total, product


def normalised(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """The piece, normalised, with mean and variance of the whole."""
    output, mean, variance = _Normalised.apply(x, norm)  # type: ignore[no-untyped-call]
    return output, mean, variance
