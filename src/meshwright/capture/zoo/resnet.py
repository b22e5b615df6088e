"""ResNet-50, ResNet-101 and ResNeXt-50: bottleneck blocks, plain or grouped."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, class_loss, tokens


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of each stage; `groups` of `group_width` channels inside a block of the first."""

    image: int = 224
    stem: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    groups: int = 1
    group_width: int = 64
    classes: int = 1000

    @property
    def inner(self) -> int:
        """Channels inside the blocks of the first stage; each later stage doubles them."""
        return self.groups * self.group_width


EXPANSION = 4
"""A block's output has this many times the stem's channels, doubled by each later stage."""


class Bottleneck(nn.Module):
    """1×1 down, 3×3 (possibly grouped and strided), 1×1 up, and a shortcut around them."""

    def __init__(self, channels: int, inner: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's feature map."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of bottleneck blocks, the mean over the image, one dense layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, sizes.stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes.stem)
        self.stages = nn.ModuleList()
        channels = sizes.stem
        for stage, count in enumerate(sizes.blocks):
            out = EXPANSION * sizes.stem * 2**stage
            blocks = nn.Sequential()
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                inner = sizes.inner * 2**stage
                blocks.append(Bottleneck(channels, inner, out, stride, sizes.groups))
                channels = out
            self.stages.append(blocks)
        self.fc = nn.Linear(channels, sizes.classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of each class."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(image))), 3, 2, 1)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _entry(name: str, sizes: Sizes, tiny: Sizes, parameters: int, source: str) -> Entry[Sizes]:
    return Entry(
        name=name,
        sizes=sizes,
        tiny=tiny,
        batch=64,
        parameters=parameters,
        source=source,
        build=ResNet,
        inputs=lambda s, n: (torch.randn(n, 3, s.image, s.image),),
        targets=lambda s, n: (tokens(s.classes, n),),
        loss=class_loss,
    )


_TINY = Sizes(image=32, stem=4, blocks=(1, 2, 1, 1), group_width=4, classes=10)

RESNET50 = _entry(
    "resnet-50",
    Sizes(),
    _TINY,
    25_557_032,
    "He et al. 2016, stride in the 3×3; count of torchvision's resnet50; batch of ResNet-101",
)
RESNET101 = _entry(
    "resnet-101",
    Sizes(blocks=(3, 4, 23, 3)),
    msgspec.structs.replace(_TINY, blocks=(1, 2, 3, 1)),
    44_549_160,
    "He et al. 2016; count of torchvision's resnet101; batch of FlexFlow",
)
RESNEXT50 = _entry(
    "resnext-50",
    Sizes(groups=32, group_width=4),
    msgspec.structs.replace(_TINY, groups=4, group_width=2),
    25_028_904,
    "Xie et al. 2017, 32×4d; count of torchvision's resnext50_32x4d; batch of Unity",
)
