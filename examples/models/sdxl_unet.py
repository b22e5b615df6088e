"""SDXL's U-Net (Podell et al. 2023), as a model file: `meshwright plan
examples/models/sdxl_unet.py:build`.

2.57 G parameters at 1024 x 1024 pixels, which are 128 x 128 latents, beside 77 tokens of text.
`?width=32&text=64&pooled=96&side=16` gives a small one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYERS = (0, 2, 10)
"""Transformer layers at each resolution."""


class Residual(nn.Module):
    """Two convolutions, with the time between them."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The image after it."""
        y = self.conv1(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class Attention(nn.Module):
    """Of an image to itself or to a text, in heads of 64."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(other, width, bias=False), nn.Linear(other, width, bias=False)
        self.out = nn.Linear(width, width)
        self.heads = max(1, width // 64)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """What is read from the other."""
        q, k, v = (
            own.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for own in (self.q(x), self.k(other), self.v(other))
        )
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention to the image, to the text, and a gated MLP."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.itself, self.text = Attention(width, width), Attention(width, text)
        self.fc1, self.fc2 = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """The positions after a layer."""
        y = self.norm1(x)
        x = x + self.itself(y, y)
        x = x + self.text(self.norm2(x), text)
        value, gate = self.fc1(self.norm3(x)).chunk(2, dim=-1)
        return x + self.fc2(value * functional.gelu(gate))


class Transformer(nn.Module):
    """Layers over the positions of an image."""

    def __init__(self, width: int, text: int, depth: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.layers = nn.ModuleList(Layer(width, text) for _ in range(depth))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """The image after it."""
        height = x.shape[2]
        y = self.into(self.norm(x).flatten(2).transpose(1, 2))
        for layer in self.layers:
            y = layer(y, text)
        return x + self.out(y).transpose(1, 2).unflatten(2, (height, -1))


class Step(nn.Module):
    """A residual block, and layers of attention where there are some."""

    def __init__(self, before: int, after: int, time: int, text: int, depth: int) -> None:
        super().__init__()
        self.residual = Residual(before, after, time)
        self.attention = Transformer(after, text, depth) if depth else None

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        """The image after it."""
        x = self.residual(x, t)
        return x if self.attention is None else self.attention(x, text)


class UNet(nn.Module):
    """Noise of latents, by time, text, and sizes of the picture."""

    def __init__(self, width: int, text: int, pooled: int) -> None:
        super().__init__()
        time, widths = 4 * width, (width, 2 * width, 4 * width)
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.added = nn.Sequential(nn.Linear(pooled, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, 1, 1)
        kept, now = [width], width
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        for number, after in enumerate(widths):
            for _ in range(2):
                self.down.append(Step(now, after, time, text, LAYERS[number]))
                now = after
                kept.append(now)
            if number < 2:
                self.smaller.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
        self.middle = Step(now, now, time, text, LAYERS[-1])
        self.last_middle = Residual(now, now, time)
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for number, after in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(Step(now + kept.pop(), after, time, text, LAYERS[number]))
                now = after
            if number:
                self.larger.append(nn.Conv2d(now, now, 3, 1, 1))
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor, text: Tensor, added: Tensor) -> Tensor:
        """The noise."""
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=t.device) * (-math.log(10_000) / half))
        angles = t[:, None] * rates
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.added(added)
        x = self.first(x)
        kept = [x]
        for number, step in enumerate(self.down):
            x = step(x, c, text)
            kept.append(x)
            if number in (1, 3):
                x = self.smaller[number // 2](x)
                kept.append(x)
        x = self.last_middle(self.middle(x, c, text), c)
        for number, step in enumerate(self.up):
            x = step(torch.cat([x, kept.pop()], dim=1), c, text)
            if number in (2, 5):
                x = self.larger[number // 3](functional.interpolate(x, scale_factor=2.0))
        return self.out(functional.silu(self.norm(x)))


def build(batch: int = 8, width: int = 320, text: int = 2048, pooled: int = 2816, side: int = 128):
    """The model with latents, times, text and sizes, and the noise to predict."""
    inputs = (
        torch.randn(batch, 4, side, side),
        torch.rand(batch),
        torch.randn(batch, 77, text),
        torch.randn(batch, pooled),
    )
    return UNet(width, text, pooled), inputs, functional.mse_loss, torch.randn(batch, 4, side, side)
