"""What users bring: functions that return models, right and wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.sum() > 0:  # the line that the sentence names
            return y.sum()
        return -y.sum()


class Selecting(Branching):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y[y > 0].sum()  # the line that the sentence names


class NumPyConstant(nn.Module):
    """Keeps a constant that no default device reaches."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.from_numpy(np.ones(4, dtype=np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.mask
        return y.mean()


class WithLoss(nn.Module):
    """Gives a mapping with a loss, as Transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.linear(x)
        return {"loss": logits.square().mean(), "logits": logits}


class PairWithLoss(WithLoss):
    """Gives logits and a loss, as nanoGPT does."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses

    def forward(self, x: Tensor) -> Any:
        found = super().forward(x)
        return found["logits"], *[found["loss"]] * self.losses, x.mean()


def pair_with_loss(losses: int = 1) -> Any:
    return PairWithLoss(losses), torch.randn(2, 4)


def with_teacher() -> Any:
    model = nn.ModuleDict(
        {"teacher": nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()), "student": nn.Linear(4, 4)}
    )
    model["teacher"].requires_grad_(False).eval()
    model.forward = lambda x: model["student"](model["teacher"](x)).mean()
    return model, torch.randn(2, 4)


def good(batch: int = 2, width: int = 4) -> Any:
    inputs, targets = torch.randn(batch, width), torch.randn(batch, 3)
    return nn.Linear(width, 3), inputs, functional.mse_loss, targets


def branching() -> Any:
    return Branching(), torch.randn(2, 4)


def selecting() -> Any:
    return Selecting(), torch.randn(2, 4)


def constant() -> Any:
    return NumPyConstant(), torch.randn(2, 4)


def with_loss() -> Any:
    return WithLoss(), {"x": torch.randn(2, 4)}


def needs_numbers() -> Any:
    """Cannot be built on meta tensors: it looks at a value."""
    width = int(torch.tensor(4).item())
    return nn.Linear(width, 4), torch.randn(2, width)


def wrong_shape() -> Any:
    return nn.Linear(4, 4), torch.randn(2, 5)


def wrong_dtype() -> Any:
    return nn.Linear(4, 4), torch.zeros(2, 4, dtype=torch.long)


def too_many() -> Any:
    return nn.Linear(4, 4), (torch.randn(2, 4), torch.randn(2, 4))


def no_parameters() -> Any:
    return nn.ReLU(), torch.randn(2, 4)


def vector_loss() -> Any:
    return nn.Linear(4, 4), torch.randn(2, 4), lambda y: y.mean(1)


def number_loss() -> Any:
    return nn.Linear(4, 4), torch.randn(2, 4), lambda y: 3.0


def only_model() -> Any:
    return nn.Linear(4, 4)


def failing() -> Any:
    raise KeyError("nothing here")


@torch.library.custom_op("user_library::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """Unknown to every family; each sample alone."""
    return 2 * x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("user_library::centred", mutates_args=())
def centred(x: Tensor) -> Tensor:
    """Unknown to every family; all samples together."""
    return x - x.mean(0)


@centred.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = centred(twice(self.linear(x)))
        return result


def unknown() -> Any:
    return Unknown(), torch.randn(6, 4)
