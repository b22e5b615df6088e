"""AlexNet in its one-tower form (Krizhevsky 2014), as FlexFlow measures it."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from meshwright.capture.zoo.entry import Entry, class_loss, tokens


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side of the image, channels of the five convolutions, width of the dense layers."""

    image: int = 224
    channels: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256)
    hidden: int = 4096
    classes: int = 1000
    dropout: float = 0.5


class AlexNet(nn.Module):
    """Five convolutions with three poolings between them, then three dense layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        a, b, c, d, e = sizes.channels
        self.features = nn.Sequential(
            *(nn.Conv2d(3, a, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(b, c, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(c, d, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(d, e, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        )
        flat = e * _side_after_features(sizes.image) ** 2
        self.classifier = nn.Sequential(
            *(nn.Dropout(sizes.dropout), nn.Linear(flat, sizes.hidden), nn.ReLU()),
            *(nn.Dropout(sizes.dropout), nn.Linear(sizes.hidden, sizes.hidden), nn.ReLU()),
            nn.Linear(sizes.hidden, sizes.classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Logits of each class."""
        logits: Tensor = self.classifier(self.features(image).flatten(1))
        return logits


def _side_after_features(image: int) -> int:
    """The side of the feature map: one convolution of stride 4, three poolings of stride 2."""
    side = (image + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side


ALEXNET = Entry(
    name="alexnet",
    sizes=Sizes(),
    tiny=Sizes(image=99, channels=(4, 6, 8, 6, 6), hidden=16, classes=10),
    batch=256,
    parameters=61_100_840,
    source="Krizhevsky 2014; count of torchvision's alexnet; batch of FlexFlow. Its adaptive "
    "pooling, the identity at 224², is left out.",
    build=AlexNet,
    inputs=lambda s, n: (torch.randn(n, 3, s.image, s.image),),
    targets=lambda s, n: (tokens(s.classes, n),),
    loss=class_loss,
)
