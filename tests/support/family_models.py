"""Models made of operators that few models have: einsum, Fourier transforms, resampling, matrices.

Enters: a batch. Leaves: what a user's function returns, a model with inputs, loss and targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f

Built = tuple[nn.Module, Tensor, Callable[[Tensor, Tensor], Tensor], Tensor]


class Mixture(nn.Module):
    """Attention and a dense mixture of experts, both in index notation."""

    def __init__(self, width: int = 16, heads: int = 4, words: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        shape = (3, width, heads, width // heads)
        self.heads = nn.Parameter(torch.randn(shape) / math.sqrt(width))
        self.out = nn.Parameter(torch.randn(heads, width // heads, width) / math.sqrt(width))
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / math.sqrt(2 * width))
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        query, key, value = torch.einsum("btd,sdhk->sbthk", x, self.heads).unbind()
        scores = torch.einsum("bqhk,bshk->bhqs", query, key) / math.sqrt(query.shape[-1])
        x = x + torch.einsum("bhqs,bshk,hkd->bqd", scores.softmax(-1), value, self.out)
        shares = self.gate(x).softmax(-1)
        inner = f.gelu(torch.einsum("...d,edf->...ef", x, self.up))
        x = x + torch.einsum("bte,btef,efd->btd", shares, inner, self.down)
        scored: Tensor = self.head(x)
        return scored


class Spectral(nn.Module):
    """A Fourier layer, normed by instance, enlarged and made smaller again."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, channels, 1)
        self.modes = nn.Parameter(torch.randn(channels, channels, 4, 3, 2) / channels)
        self.norm = nn.InstanceNorm2d(channels, affine=True)
        self.leave = nn.Conv2d(channels, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.enter(image)
        waves = torch.fft.rfft2(x)
        weights = torch.view_as_complex(self.modes)
        mixed = torch.einsum("bixy,ioxy->boxy", waves[:, :, :4, :3], weights)
        low = torch.zeros_like(waves)
        low[:, :, :4, :3] = mixed
        x = self.norm(x + torch.fft.irfft2(low, s=x.shape[-2:]))
        x = f.interpolate(f.gelu(x), scale_factor=2.0, mode="bilinear")
        x = f.pad(f.interpolate(x, scale_factor=0.5), (1, 1, 1, 1), mode="circular")
        left: Tensor = self.leave(x[:, :, 1:-1, 1:-1])
        return left


class Metric(nn.Module):
    """Distances, similarities and determinants of learnt features."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.features, self.slope = nn.Linear(width, 2 * width), nn.PReLU(width)
        self.pairs = nn.Bilinear(width, width, 6)
        self.prototypes = nn.Parameter(torch.randn(6, width))
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = f.normalize(self.slope(f.glu(self.features(x))), dim=-1)
        far = torch.cdist(y, self.prototypes)
        near = f.cosine_similarity(y[:, None], self.prototypes[None], dim=-1)
        matrices = y[:, :, None] * y[:, None, :] + torch.eye(y.shape[-1], device=y.device)
        volume = torch.linalg.slogdet(matrices)[1]
        joined = torch.hstack([self.pairs(y, x.view_as(y)), far * near])
        scored: Tensor = self.out(joined) * volume[:, None]
        return scored


class Shuffled(nn.Module):
    """Pixels moved about: shuffled, sampled by a grid, unfolded and folded, sorted and tiled."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 6)
        self.mix, self.out = nn.Parameter(torch.randn(4, 4) / 2), nn.Linear(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.enter(image)
        turned = self.place(x.mean((2, 3))).tanh().view(-1, 2, 3)
        x = f.pixel_shuffle(x, 2)
        grid = f.affine_grid(turned, [*x.shape], align_corners=False)
        x = f.grid_sample(x, grid, align_corners=False)
        x = f.fold(f.unfold(x, 2, stride=2) * 2, x.shape[-2:], 2, stride=2)
        x = (x.movedim(1, -1) @ self.mix.T).swapaxes(1, 3).tile(1, 1, 1, 2)[..., :4]
        x = torch.take_along_dim(x, x.detach().argsort(1), 1)
        scored: Tensor = self.out(x.cumsum(-1).logcumsumexp(-1).mean((2, 3)).type_as(image))
        return scored


def _words(scores: Tensor, words: Tensor) -> Tensor:
    return f.cross_entropy(scores.flatten(0, 1), words.flatten())


def mixture(batch: int = 8) -> Built:
    words = torch.randint(0, 12, (batch, 6))
    return Mixture(), words, _words, words.roll(1, 1)


def spectral(batch: int = 8) -> Built:
    image = torch.randn(batch, 1, 8, 8)
    return Spectral(), image, f.mse_loss, image.flip(2)


def metric(batch: int = 8) -> Built:
    return Metric(), torch.randn(batch, 8), f.cross_entropy, torch.randint(0, 4, (batch,))


def shuffled(batch: int = 8) -> Built:
    return Shuffled(), torch.randn(batch, 3, 4, 4), f.cross_entropy, torch.randint(0, 4, (batch,))
