"""Models and losses with something that a trace loses easily, as people write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Rotary(nn.Module):
    """Attention over heads whose queries and keys are turned as complex numbers, as in Llama."""

    angles: Tensor

    def __init__(self, width: int = 16, heads: int = 2, length: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 5)
        half = width // heads // 2
        rates = 1.0 / 100.0 ** (torch.arange(half) / half)
        self.register_buffer("angles", torch.outer(torch.arange(length), rates))

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turns = torch.polar(torch.ones_like(self.angles), self.angles)
        return torch.view_as_real(pairs * turns).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class Filtered(nn.Module):
    """A learnt filter in the frequency domain, as in global filter networks."""

    def __init__(self, width: int = 8, length: int = 8) -> None:
        super().__init__()
        self.into = nn.Linear(width, width)
        self.filter = nn.Parameter(torch.randn(length // 2 + 1, width, 2) * 0.5)
        self.out = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.into(x), dim=1)
        spectrum = spectrum * torch.view_as_complex(self.filter) + spectrum.conj()
        out: Tensor = self.out(torch.fft.irfft(spectrum, n=x.shape[1], dim=1))
        return out


def _classified(model: nn.Module, width: int, batch: int) -> Any:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    inputs, targets = torch.randn(batch, 8, width), torch.randint(0, 5, (batch, 8))
    return model, inputs, loss, targets


def rotary(batch: int = 8) -> Any:
    return _classified(Rotary(), 16, batch)


def filtered(batch: int = 8) -> Any:
    return _classified(Filtered(), 8, batch)
