"""Inception-v3 (Szegedy et al. 2016) without its auxiliary head, as FlexFlow and Unity run it."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, class_loss, tokens

FULL_WIDTH = 16
"""Every published channel count is a multiple of it, so that a tiny twin can divide by it."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side of the image; `width` sixteenths of the published channels."""

    image: int = 299
    width: int = FULL_WIDTH
    classes: int = 1000

    def channels(self, published: int) -> int:
        """A published channel count at this width."""
        return published * self.width // FULL_WIDTH


class Convolution(nn.Module):
    """Convolution, batch normalisation and ReLU: the brick of every branch."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """The brick's feature map."""
        return functional.relu(self.bn(self.conv(x)))


class Branches(nn.Module):
    """Several ways through the same input, concatenated along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x: Tensor) -> Tensor:
        """The concatenated feature maps."""
        return torch.cat([branch(x) for branch in self.branches.values()], dim=1)


class Brick(msgspec.Struct, frozen=True):
    """Lays bricks whose channels, given as published, are scaled to the width of the model."""

    sizes: Sizes

    def __call__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> Convolution:
        """A convolution of the published channels, scaled."""
        channels, out = self.sizes.channels(channels), self.sizes.channels(out)
        return Convolution(channels, out, kernel, stride=stride, padding=padding)


def _cell_a(brick: Brick, channels: int, pooled: int) -> Branches:
    return Branches(
        one=brick(channels, 64, 1),
        five=nn.Sequential(brick(channels, 48, 1), brick(48, 64, 5, padding=2)),
        twice=nn.Sequential(
            brick(channels, 64, 1), brick(64, 96, 3, padding=1), brick(96, 96, 3, padding=1)
        ),
        pool=nn.Sequential(nn.AvgPool2d(3, 1, 1), brick(channels, pooled, 1)),
    )


def _cell_b(brick: Brick, channels: int) -> Branches:
    return Branches(
        three=brick(channels, 384, 3, stride=2),
        twice=nn.Sequential(
            brick(channels, 64, 1), brick(64, 96, 3, padding=1), brick(96, 96, 3, stride=2)
        ),
        pool=nn.MaxPool2d(3, 2),
    )


def _across(brick: Brick, channels: int, out: int) -> Convolution:
    return brick(channels, out, (1, 7), padding=(0, 3))


def _down(brick: Brick, channels: int, out: int) -> Convolution:
    return brick(channels, out, (7, 1), padding=(3, 0))


def _cell_c(brick: Brick, channels: int, inner: int) -> Branches:
    return Branches(
        one=brick(channels, 192, 1),
        seven=nn.Sequential(
            brick(channels, inner, 1), _across(brick, inner, inner), _down(brick, inner, 192)
        ),
        twice=nn.Sequential(
            brick(channels, inner, 1),
            _down(brick, inner, inner),
            _across(brick, inner, inner),
            _down(brick, inner, inner),
            _across(brick, inner, 192),
        ),
        pool=nn.Sequential(nn.AvgPool2d(3, 1, 1), brick(channels, 192, 1)),
    )


def _cell_d(brick: Brick, channels: int) -> Branches:
    return Branches(
        three=nn.Sequential(brick(channels, 192, 1), brick(192, 320, 3, stride=2)),
        seven=nn.Sequential(
            brick(channels, 192, 1),
            _across(brick, 192, 192),
            _down(brick, 192, 192),
            brick(192, 192, 3, stride=2),
        ),
        pool=nn.MaxPool2d(3, 2),
    )


def _fork(brick: Brick, channels: int) -> Branches:
    return Branches(
        across=brick(channels, 384, (1, 3), padding=(0, 1)),
        down=brick(channels, 384, (3, 1), padding=(1, 0)),
    )


def _cell_e(brick: Brick, channels: int) -> Branches:
    return Branches(
        one=brick(channels, 320, 1),
        three=nn.Sequential(brick(channels, 384, 1), _fork(brick, 384)),
        twice=nn.Sequential(
            brick(channels, 448, 1), brick(448, 384, 3, padding=1), _fork(brick, 384)
        ),
        pool=nn.Sequential(nn.AvgPool2d(3, 1, 1), brick(channels, 192, 1)),
    )


class InceptionV3(nn.Module):
    """A convolutional stem, eleven cells, the mean over the image, one dense layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        brick = Brick(sizes)
        self.stem = nn.Sequential(
            Convolution(3, sizes.channels(32), 3, stride=2),
            *(brick(32, 32, 3), brick(32, 64, 3, padding=1), nn.MaxPool2d(3, 2)),
            *(brick(64, 80, 1), brick(80, 192, 3), nn.MaxPool2d(3, 2)),
        )
        self.cells = nn.Sequential(
            *(_cell_a(brick, 192, 32), _cell_a(brick, 256, 64), _cell_a(brick, 288, 64)),
            _cell_b(brick, 288),
            *(_cell_c(brick, 768, inner) for inner in (128, 160, 160, 192)),
            _cell_d(brick, 768),
            *(_cell_e(brick, 1280), _cell_e(brick, 2048)),
        )
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(sizes.channels(2048), sizes.classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of each class."""
        features = self.cells(self.stem(image)).mean((2, 3))
        logits: Tensor = self.fc(self.dropout(features))
        return logits


INCEPTION_V3 = Entry(
    name="inception-v3",
    sizes=Sizes(),
    tiny=Sizes(image=75, width=1, classes=10),
    batch=64,
    parameters=23_834_568,
    source="Szegedy et al. 2016; count of torchvision's inception_v3(aux_logits=False); batch of "
    "FlexFlow and Unity",
    build=InceptionV3,
    inputs=lambda s, n: (torch.randn(n, 3, s.image, s.image),),
    targets=lambda s, n: (tokens(s.classes, n),),
    loss=class_loss,
)
