"""DiT-XL/2 and the U-Net of Stable Diffusion XL: what predicts noise in latent images."""

from __future__ import annotations

from typing import NamedTuple, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.encoder import FeedForward
from meshwright.capture.zoo.entry import Entry, tokens

STEPS = 1000
"""Noise levels."""

PERIOD = 10_000.0
"""The longest of a timestep's waves."""


class Waves(nn.Module):
    """Numbers as cosines and sines of falling frequency."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        exponents = torch.arange(width // 2) / (width // 2)
        self.register_buffer("frequencies", PERIOD**-exponents, persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """One more dim, of that width."""
        angles = numbers.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def noise_loss(predicted: Tensor, noise: Tensor) -> Tensor:
    """Mean squared error of the noise; channels of a variance learn nothing."""
    return functional.mse_loss(predicted[:, : noise.shape[1]], noise)


class DitSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side and channels of the latent image, side of a patch, layers, width, heads, classes."""

    image: int = 32
    channels: int = 4
    patch: int = 2
    layers: int = 28
    hidden: int = 1152
    heads: int = 16
    inner: int = 4608
    classes: int = 1000
    waves: int = 256

    @property
    def out(self) -> int:
        """Channels of noise and variance."""
        return 2 * self.channels


class JointAttention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers from all."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        gathered = functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scaled and shifted by what the condition says."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DitLayer(nn.Module):
    """A layer whose norms and residuals the condition scales (adaLN-Zero)."""

    def __init__(self, sizes: DitSizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=1e-6, elementwise_affine=False)
        self.attention = JointAttention(sizes.hidden, sizes.heads)
        self.feed_forward_norm = nn.LayerNorm(sizes.hidden, eps=1e-6, elementwise_affine=False)
        self.feed_forward = FeedForward(sizes.hidden, sizes.inner)
        self.modulation = nn.Linear(sizes.hidden, 6 * sizes.hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The layer's hidden states."""
        shift, scale, gate, shift_inner, scale_inner, gate_inner = self.modulation(
            functional.silu(condition)
        ).chunk(6, dim=-1)
        attended = self.attention(modulated(self.attention_norm(x), shift, scale))
        x = x + gate.unsqueeze(1) * attended
        y = self.feed_forward(modulated(self.feed_forward_norm(x), shift_inner, scale_inner))
        z: Tensor = x + gate_inner.unsqueeze(1) * y
        return z


class Dit(nn.Module):
    """Patches of a noisy latent image as words; timestep and class condition every layer."""

    positions: Tensor

    def __init__(self, sizes: DitSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patches = nn.Conv2d(sizes.channels, sizes.hidden, sizes.patch, stride=sizes.patch)
        count = (sizes.image // sizes.patch) ** 2
        self.register_buffer("positions", 0.02 * torch.randn(1, count, sizes.hidden))
        self.time = nn.Sequential(
            Waves(sizes.waves), nn.Linear(sizes.waves, sizes.hidden), nn.SiLU(),
            nn.Linear(sizes.hidden, sizes.hidden),
        )  # fmt: skip
        self.labels = nn.Embedding(sizes.classes + 1, sizes.hidden)
        self.layers = nn.ModuleList(DitLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Linear(sizes.hidden, 2 * sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.patch**2 * sizes.out)

    def forward(self, image: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        """Noise and its variance."""
        sizes, side = self.sizes, self.sizes.image // self.sizes.patch
        condition = self.time(steps) + self.labels(labels)
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x, condition)
        shift, scale = self.modulation(functional.silu(condition)).chunk(2, dim=-1)
        patches = self.head(modulated(self.norm(x), shift, scale))
        cut = patches.unflatten(1, (side, side)).unflatten(-1, (sizes.patch, sizes.patch, -1))
        noise: Tensor = cut.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return noise


DIT_XL = Entry(
    name="dit-xl",
    sizes=DitSizes(),
    tiny=DitSizes(image=8, layers=2, hidden=16, heads=4, inner=32, classes=10, waves=8),
    batch=32,
    parameters=674_834_720,
    source="Peebles & Xie 2023, XL/2 at 256 x 256; their 675,129,632 have 294,912 fixed positions",
    build=Dit,
    inputs=lambda s, n: (
        torch.randn(n, s.channels, s.image, s.image), tokens(STEPS, n), tokens(s.classes, n),
    ),
    targets=lambda s, n: (torch.randn(n, s.channels, s.image, s.image),),
    loss=noise_loss,
)  # fmt: skip


class UnetSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side and channels of the latent image, channels of each stage and how many transformer layers
    follow a block there, width of a head, words and width of the text, widths of what else is told.
    """

    image: int = 128
    channels: int = 4
    stages: tuple[int, ...] = (320, 640, 1280)
    depths: tuple[int, ...] = (0, 2, 10)
    head: int = 64
    groups: int = 32
    words: int = 77
    text: int = 2048
    pooled: int = 1280
    told: int = 6
    """Numbers about size and crop."""
    waves: int = 256
    blocks: int = 2
    """Of a stage on the way down; one more on the way up."""

    @property
    def condition(self) -> int:
        """Width of what conditions every block."""
        return 4 * self.stages[0]


class CrossAttention(nn.Module):
    """Attention of an image's positions to themselves or to a text."""

    def __init__(self, hidden: int, read: int, head: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(read, hidden, bias=False)
        self.value = nn.Linear(read, hidden, bias=False)
        self.output = nn.Linear(hidden, hidden)
        self.head = head

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """What each position gathers."""
        query, key, value = (
            part.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in (self.query(x), self.key(read), self.value(read))
        )
        gathered = functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class UnetLayer(nn.Module):
    """Self-attention, attention to the text, and a gated feed-forward layer."""

    def __init__(self, hidden: int, sizes: UnetSizes) -> None:
        super().__init__()
        self.self_norm = nn.LayerNorm(hidden)
        self.self_attention = CrossAttention(hidden, hidden, sizes.head)
        self.text_norm = nn.LayerNorm(hidden)
        self.text_attention = CrossAttention(hidden, sizes.text, sizes.head)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 8 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """The layer's hidden states."""
        normed = self.self_norm(x)
        x = x + self.self_attention(normed, normed)
        x = x + self.text_attention(self.text_norm(x), text)
        widened, gate = self.up(self.feed_forward_norm(x)).chunk(2, dim=-1)
        y: Tensor = x + self.down(widened * functional.gelu(gate))
        return y


class UnetBlock(nn.Module):
    """A residual block that the condition shifts, and transformer layers over its positions."""

    def __init__(self, channels: int, out: int, depth: int, sizes: UnetSizes) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(sizes.groups, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.condition = nn.Linear(sizes.condition, out)
        self.norm2 = nn.GroupNorm(sizes.groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()
        self.layers = nn.ModuleList(UnetLayer(out, sizes) for _ in range(depth))
        if depth:
            self.layers_norm = nn.GroupNorm(sizes.groups, out, eps=1e-6)
            self.enter, self.leave = nn.Linear(out, out), nn.Linear(out, out)

    def forward(self, x: Tensor, condition: Tensor, text: Tensor) -> Tensor:
        """The block's feature map."""
        z = self.conv1(functional.silu(self.norm1(x)))
        z = z + self.condition(functional.silu(condition))[:, :, None, None]
        y: Tensor = self.shortcut(x) + self.conv2(functional.silu(self.norm2(z)))
        if not self.layers:
            return y
        z = self.enter(self.layers_norm(y).flatten(2).transpose(1, 2))
        for layer in self.layers:
            z = layer(z, text)
        mixed: Tensor = self.leave(z).transpose(1, 2).unflatten(2, y.shape[2:]) + y
        return mixed


class StageWidths(NamedTuple):
    """Of a block on the way up: what enters from below, from the way down, and what leaves."""

    below: int
    skipped: int
    out: int


def widths_up(sizes: UnetSizes) -> list[list[StageWidths]]:
    """Stage by stage from the deepest on, what the way down left taken in reverse order.

    >>> widths_up(UnetSizes())[0][-1]
    StageWidths(below=1280, skipped=640, out=1280)
    """
    skipped = [sizes.stages[0]]
    for stage, width in enumerate(sizes.stages):
        shrunk = [width] if stage + 1 < len(sizes.stages) else []
        skipped += [width] * sizes.blocks + shrunk
    below, stages = sizes.stages[-1], []
    for width in reversed(sizes.stages):
        blocks = []
        for _ in range(sizes.blocks + 1):
            blocks.append(StageWidths(below, skipped.pop(), width))
            below = width
        stages.append(blocks)
    return stages


class Unet(nn.Module):
    """Stages of blocks down to the smallest feature map and up again, with skip connections."""

    def __init__(self, sizes: UnetSizes) -> None:
        super().__init__()
        first, last = sizes.stages[0], sizes.stages[-1]
        about = sizes.pooled + sizes.told * sizes.waves
        self.step_waves, self.told_waves = Waves(first), Waves(sizes.waves)
        self.time, self.about = (
            nn.Sequential(
                nn.Linear(width, sizes.condition), nn.SiLU(),
                nn.Linear(sizes.condition, sizes.condition),
            )
            for width in (first, about)
        )  # fmt: skip
        self.enter = nn.Conv2d(sizes.channels, first, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        before = first
        for width, depth in zip(sizes.stages, sizes.depths, strict=True):
            ins = [before, *[width] * (sizes.blocks - 1)]
            self.down.append(nn.ModuleList(UnetBlock(c, width, depth, sizes) for c in ins))
            before = width
        for width in sizes.stages[:-1]:
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
        self.middle = UnetBlock(last, last, sizes.depths[-1], sizes)
        self.middle_end = UnetBlock(last, last, 0, sizes)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for stage, depth in zip(widths_up(sizes), reversed(sizes.depths), strict=True):
            self.up.append(
                nn.ModuleList(UnetBlock(w.below + w.skipped, w.out, depth, sizes) for w in stage)
            )
        for width in sizes.stages[:0:-1]:
            self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm = nn.GroupNorm(sizes.groups, first)
        self.leave = nn.Conv2d(first, sizes.channels, 3, padding=1)

    def forward(
        self, image: Tensor, steps: Tensor, text: Tensor, pooled: Tensor, sizes_and_crop: Tensor
    ) -> Tensor:
        """The noise."""
        about = torch.cat([pooled, self.told_waves(sizes_and_crop).flatten(1)], dim=-1)
        condition = self.time(self.step_waves(steps)) + self.about(about)
        x = self.enter(image)
        skipped = [x]
        for stage, blocks in enumerate(self.down):
            for block in cast("nn.ModuleList", blocks):
                x = block(x, condition, text)
                skipped.append(x)
            if stage < len(self.shrink):
                x = self.shrink[stage](x)
                skipped.append(x)
        x = self.middle_end(self.middle(x, condition, text), condition, text)
        for stage, blocks in enumerate(self.up):
            for block in cast("nn.ModuleList", blocks):
                x = block(torch.cat([x, skipped.pop()], dim=1), condition, text)
            if stage < len(self.grow):
                x = self.grow[stage](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        noise: Tensor = self.leave(functional.silu(self.norm(x)))
        return noise


SDXL_UNET = Entry(
    name="sdxl-unet",
    sizes=UnetSizes(),
    tiny=UnetSizes(
        image=8, stages=(8, 16), depths=(0, 1), head=8, groups=4, words=5, text=12, pooled=6,
        told=2, waves=8, blocks=1,
    ),
    batch=4,
    parameters=2_567_463_684,
    source="Podell et al. 2023, 1024 x 1024; count of Diffusers' UNet2DConditionModel",
    build=Unet,
    inputs=lambda s, n: (
        torch.randn(n, s.channels, s.image, s.image), tokens(STEPS, n),
        torch.randn(n, s.words, s.text), torch.randn(n, s.pooled), torch.rand(n, s.told),
    ),
    targets=lambda s, n: (torch.randn(n, s.channels, s.image, s.image),),
    loss=noise_loss,
)  # fmt: skip
