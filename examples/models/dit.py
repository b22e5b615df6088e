"""DiT-XL/2 (Peebles & Xie 2023), as a model file: `meshwright plan examples/models/dit.py:build`.

675 M parameters at 256 x 256 pixels, which are 32 x 32 latents. `?depth=2` gives a smaller one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scaled and shifted, for each sample its own way."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """Attention and MLP, both modulated by the conditioning (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def attend(self, x: Tensor) -> Tensor:
        """Every patch to every other."""
        batch, patches, width = x.shape
        rows = self.qkv(x).reshape(batch, patches, 3, self.heads, width // self.heads)
        q, k, v = rows.permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(found.transpose(1, 2).reshape(batch, patches, width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """The patches after a layer."""
        parts = self.modulation(functional.silu(c)).chunk(6, dim=1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1.unsqueeze(1) * self.attend(modulated(self.norm1(x), shift1, scale1))
        y = functional.gelu(self.fc1(modulated(self.norm2(x), shift2, scale2)), approximate="tanh")
        return x + gate2.unsqueeze(1) * self.fc2(y)


class Dit(nn.Module):
    """Noise and variance of latents, by time and class."""

    def __init__(self, depth: int, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.zeros(1, (side // 2) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation, self.out = nn.Linear(width, 2 * width), nn.Linear(width, 2 * 2 * 8)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Patches of predictions."""
        rates = torch.exp(torch.arange(128, device=t.device) * (-math.log(10_000) / 128))
        angles = t[:, None] * rates
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.classes(y)
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(functional.silu(c)).chunk(2, dim=1)
        return self.out(modulated(self.norm(x), shift, scale))


def build(batch: int = 32, depth: int = 28, width: int = 1152, heads: int = 16, side: int = 32):
    """The model with latents, times and classes, and the noise to predict, patch by patch."""
    inputs = (
        torch.randn(batch, 4, side, side),
        torch.rand(batch),
        torch.randint(0, 1000, (batch,)),
    )
    targets = torch.randn(batch, (side // 2) ** 2, 32)
    return Dit(depth, width, heads, side), inputs, functional.mse_loss, targets
