"""LeNet-5 (LeCun et al. 1998): small enough that FlexFlow searched all its strategies."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from meshwright.capture.zoo.entry import Entry, class_loss, tokens


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side of the image, channels of the two convolutions, widths of the dense layers."""

    image: int = 32
    channels: tuple[int, int] = (6, 16)
    hidden: tuple[int, int] = (120, 84)
    classes: int = 10


class LeNet(nn.Module):
    """Two convolutions, each with a pooling behind it, then three dense layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        a, b = sizes.channels
        c, d = sizes.hidden
        self.features = nn.Sequential(
            *(nn.Conv2d(1, a, 5), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(a, b, 5), nn.Tanh(), nn.AvgPool2d(2)),
        )
        side = ((sizes.image - 4) // 2 - 4) // 2
        self.classifier = nn.Sequential(
            *(nn.Linear(b * side**2, c), nn.Tanh()),
            *(nn.Linear(c, d), nn.Tanh()),
            nn.Linear(d, sizes.classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Logits of each class."""
        logits: Tensor = self.classifier(self.features(image).flatten(1))
        return logits


LENET = Entry(
    name="lenet",
    sizes=Sizes(),
    tiny=Sizes(image=16, channels=(2, 3), hidden=(6, 5), classes=4),
    batch=64,
    parameters=61_706,
    source="LeCun et al. 1998, digits of 28² padded to 32². As is usual today, every map of the "
    "second convolution reads all of the first, poolings learn nothing, and the output is dense. "
    "Batch of FlexFlow's other models.",
    build=LeNet,
    inputs=lambda s, n: (torch.randn(n, 1, s.image, s.image),),
    targets=lambda s, n: (tokens(s.classes, n),),
    loss=class_loss,
)
