"""Small mixtures of experts as people write them. Enters: nothing. Leaves: modules, examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.source.example import Example
from meshwright.capture.zoo.grouped_products import grouped_mm


class Added(nn.Module):
    """Results are added to zeros at their tokens; weights before the sum, biases, relu."""

    def __init__(self, experts: int = 4, chosen: int = 2, noise: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(32, 8), nn.Linear(8, experts)
        self.up = nn.Parameter(torch.randn(experts, 8, 12) / 3)
        self.bias = nn.Parameter(torch.randn(experts, 12) / 3)
        self.down = nn.Parameter(torch.randn(experts, 12, 8) / 3)
        self.chosen, self.noise = chosen, nn.Dropout(noise)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).flatten(0, 1)
        weights, index = self.router(x).softmax(-1).topk(self.chosen, dim=-1)
        ids, order = index.reshape(-1).sort()
        tokens = order // self.chosen
        counts = functional.one_hot(index.reshape(-1), len(self.up)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        hidden = (grouped_mm(x[tokens], self.up, ends) + self.bias[ids]).relu()
        hidden = grouped_mm(self.noise(hidden), self.down, ends)
        hidden = hidden * weights.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, tokens, hidden).square().mean()


class Spied(Added):
    """The same, but what the experts make is read elsewhere too."""

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).flatten(0, 1)
        weights, index = self.router(x).softmax(-1).topk(self.chosen, dim=-1)
        _, order = index.reshape(-1).sort()
        ends = functional.one_hot(index.reshape(-1), len(self.up)).sum(0).cumsum(0)
        hidden = grouped_mm(x[order // self.chosen], self.up, ends)
        reordered = grouped_mm(hidden, self.down, ends)[order.argsort()]
        mixed = (reordered.view(-1, self.chosen, 8) * weights.unsqueeze(-1)).sum(1)
        loss: Tensor = mixed.square().mean() + hidden.square().mean()
        return loss


def example(model: nn.Module, batch: int = 8, positions: int = 6) -> Example:
    words = torch.randint(0, 32, (batch, positions), generator=torch.Generator().manual_seed(3))
    return Example(model=model, inputs=(words,))
