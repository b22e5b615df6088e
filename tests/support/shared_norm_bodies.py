"""Models that call one batch normalisation several times in a step, or have it under several names,
trained on one device and on ranks: a Siamese network, a head shared over the levels of a pyramid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright import parallelize
from meshwright.capture.source.example import Example
from meshwright.plan.plan import Plan

BATCH, STEPS = 16, 3

Numbers = tuple[list[float], dict[str, Any]]
"""Losses, the last one in evaluation, and the state after training."""


class Siamese(nn.Module):
    """A backbone for both sides, and a contrastive loss; the second norm learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.left = self.right = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 8),
            nn.BatchNorm1d(8, momentum=0.3, affine=False),
        )

    def forward(self, left: Tensor, right: Tensor, alike: Tensor) -> Tensor:
        far: Tensor = (self.left(left) - self.right(right)).square().mean(1)
        return (alike * far + (1 - alike) * (1 - far).relu()).mean()


class Pyramid(nn.Module):
    """A tower shared over three levels, as RetinaNet's and FCOS's heads are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.tower = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        level = self.stem(x)
        first, second, third = (
            self.tower(features).flatten(2).mean(2)
            for features in (
                level,
                functional.avg_pool2d(level, 2),
                functional.avg_pool2d(level, 4),
            )
        )
        total: Tensor = first + second + third
        return total


class Listed(nn.Module):
    """Equal layers that may run again in the backward pass; the last has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            for _ in range(3)
        )
        self.last = self.layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.flatten(2).mean(2)


MODELS = {"siamese": Siamese, "pyramid": Pyramid, "listed": Listed}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(2)
    return MODELS[name]().double()


def batch_of(name: str, step: int = 0) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(step)

    def images() -> Tensor:
        # Samples differ in size, so that the two sides, and each step, have statistics of their own
        image = torch.randn(BATCH, 2, 8, 8, generator=draw, dtype=torch.float64)
        return image * (1 + step) + torch.rand(1, 2, 1, 1, generator=draw, dtype=torch.float64)

    if name == "siamese":
        return images(), images(), torch.randint(0, 2, (BATCH,), generator=draw).double()
    return images(), torch.randint(0, 4, (BATCH,), generator=draw)


def example_of(name: str) -> Example:
    model, batch = model_of(name), batch_of(name)
    if name == "siamese":
        return Example(model=model, inputs=batch)
    return Example(model=model, inputs=batch[:1], loss=functional.cross_entropy, targets=batch[1:])


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """What the model computes itself, or a loss of its scores."""
    if len(batch) == 3:
        loss: Tensor = model(*batch)
        return loss
    return functional.cross_entropy(model(batch[0]), batch[1])


def alone(name: str, micro_batches: int) -> Numbers:
    """By the plain model, micro-batch after micro-batch."""
    model = model_of(name)
    return _losses(model, name, micro_batches), _arrays(model.state_dict())


def by_plans(name: str, plans: Sequence[Plan]) -> list[Numbers]:
    """By each plan."""
    outcomes = []
    for plan in plans:
        with parallelize(model_of(name), plan) as model:
            losses = _losses(model, name, 1)
            state = model.whole_state(to_rank=None)
            assert state is not None
            outcomes.append((losses, _arrays(state)))
    return outcomes


def _losses(model: nn.Module, name: str, parts: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part in zip(*(tensor.chunk(parts) for tensor in batch_of(name, step)), strict=True):
            loss: Any = loss_of(model, part) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    loss = loss_of(model.eval(), batch_of(name))
    loss.backward()
    losses.append(loss.item())
    return losses


def _arrays(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: tensor.detach().numpy().copy() for key, tensor in state.items()}
