"""An MLP of blocks, each two products with a ReLU between them; for `joint_times`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(batch: int = 1024, width: int = 1024, blocks: int = 2) -> tuple[nn.Module, Tensor]:
    """The model and its input: inside a block it is four times as wide."""
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers), torch.zeros(batch, width)
