"""Unity's dense models: the two-tower MLP and CANDLE-Uno."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, class_loss, tokens


class Tower(nn.Module):
    """Dense layers of one width without bias, ReLU after each or only between them."""

    def __init__(self, features: int, width: int, layers: int, *, last_relu: bool) -> None:
        super().__init__()
        widths = (features, *[width] * layers)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
        self.relus = layers if last_relu else layers - 1

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output."""
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index < self.relus:
                x = functional.relu(x)
        return x


class MlpSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Width of the input, width and number of the dense layers of each tower."""

    features: int = 1024
    width: int = 8192
    layers: int = 8


class Mlp(nn.Module):
    """Two towers over two inputs; the sum of their outputs are the logits."""

    def __init__(self, sizes: MlpSizes) -> None:
        super().__init__()
        self.left = Tower(sizes.features, sizes.width, sizes.layers, last_relu=False)
        self.right = Tower(sizes.features, sizes.width, sizes.layers, last_relu=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Logits, as many as the towers are wide."""
        logits: Tensor = self.left(left) + self.right(right)
        return logits


MLP = Entry(
    name="mlp",
    sizes=MlpSizes(),
    tiny=MlpSizes(features=6, width=8),
    batch=256,
    parameters=956_301_312,
    source="Unity: 16 dense layers of 8192; towers, input width and no bias from its code; the "
    "count follows.",
    build=Mlp,
    inputs=lambda s, n: (torch.randn(n, s.features), torch.randn(n, s.features)),
    targets=lambda s, n: (tokens(s.width, n),),
    loss=class_loss,
)


class CandleSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Widths of the inputs; width and number of the dense layers of the towers and of the top."""

    cell: int = 942
    descriptors: int = 5270
    fingerprints: int = 2048
    width: int = 4192
    tower_layers: int = 8
    top_layers: int = 4


class CandleUno(nn.Module):
    """The response of a cell to two drugs; both drugs share their towers."""

    def __init__(self, sizes: CandleSizes) -> None:
        super().__init__()
        width, layers = sizes.width, sizes.tower_layers
        self.cell = Tower(sizes.cell, width, layers, last_relu=True)
        self.descriptors = Tower(sizes.descriptors, width, layers, last_relu=True)
        self.fingerprints = Tower(sizes.fingerprints, width, layers, last_relu=True)
        self.top = Tower(2 + 5 * width, width, sizes.top_layers, last_relu=True)
        self.output = nn.Linear(width, 1, bias=False)

    def forward(
        self,
        doses: tuple[Tensor, Tensor],
        cell: Tensor,
        descriptors: tuple[Tensor, Tensor],
        fingerprints: tuple[Tensor, Tensor],
    ) -> Tensor:
        """The response, one number for each sample."""
        features = [*doses, self.cell(cell)]
        features += [self.descriptors(drug) for drug in descriptors]
        features += [self.fingerprints(drug) for drug in fingerprints]
        response: Tensor = self.output(self.top(torch.cat(features, dim=1)))
        return response


def _candle_inputs(s: CandleSizes, n: int) -> tuple[object, ...]:
    def pair(width: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, width), torch.randn(n, width)

    return pair(1), torch.randn(n, s.cell), pair(s.descriptors), pair(s.fingerprints)


CANDLE_UNO = Entry(
    name="candle-uno",
    sizes=CandleSizes(),
    tiny=CandleSizes(cell=5, descriptors=6, fingerprints=4, width=8),
    batch=256,
    parameters=544_251_552,
    source="Unity and its code: feature widths, towers of 8 and top of 4 dense layers of 4192; "
    "the count follows.",
    build=CandleUno,
    inputs=_candle_inputs,
    targets=lambda s, n: (torch.randn(n, 1),),
    loss=functional.mse_loss,
)
