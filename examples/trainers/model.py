"""A classifier that computes its loss if it is given labels, and data for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

BATCH, WIDTH, CLASSES = 8, 16, 4


class Classifier(nn.Module):
    """As models of Transformers are: a dict with logits, and with a loss if labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the mean loss of all labels."""
        logits = self.body(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Samples(Dataset[dict[str, Tensor]]):
    """Numbers whose first columns tell the class."""

    def __init__(self, count: int = 64) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, WIDTH, generator=draw)
        self.labels = self.x[:, :CLASSES].argmax(-1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"x": self.x[place], "labels": self.labels[place]}


def build(batch: int = BATCH) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model and its inputs, for `meshwright plan`."""
    torch.manual_seed(0)
    return Classifier(), {"x": torch.randn(batch, WIDTH), "labels": torch.arange(batch) % CLASSES}
