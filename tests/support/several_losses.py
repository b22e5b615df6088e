"""Models whose loss adds up several, trained on one device and on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright import parallelize
from meshwright.capture.source.example import Example
from meshwright.plan.plan import Plan

BATCH, STEPS = 16, 3

Joining = Callable[[list[Tensor]], Tensor]
Arrays = dict[str, Any]


def _sum(losses: list[Tensor]) -> Tensor:
    return torch.as_tensor(sum(losses))


def _weighted(losses: list[Tensor]) -> Tensor:
    return losses[0] + 0.5 * losses[1] - losses[2] / 3


def _mean(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).mean()


def _squared(losses: list[Tensor]) -> Tensor:
    return losses[0] + losses[1] ** 2


def _more(losses: list[Tensor]) -> Tensor:
    return losses[0] + losses[1] + 1.0


def _rounded(losses: list[Tensor]) -> Tensor:
    return losses[0] + torch.div(losses[1], 0.5, rounding_mode="floor")


LINEAR: Mapping[str, Joining] = {"sum": _sum, "weighted": _weighted, "mean": _mean}
OTHERS: Mapping[str, Joining] = {"squared": _squared, "more": _more, "rounded": _rounded}


class Several(nn.Module):
    """Two classes and a number of one sample, each with a loss."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        self.kind, self.place = nn.Linear(32, 5), nn.Linear(32, 3)
        self.size = nn.Linear(32, 1)
        self._join = {**LINEAR, **OTHERS}[join]

    def forward(self, x: Tensor, kind: Tensor, place: Tensor, size: Tensor) -> Tensor:
        x = self.body(x)
        return self._join(
            [
                functional.cross_entropy(self.kind(x), kind),
                functional.cross_entropy(self.place(x), place),
                functional.mse_loss(self.size(x).squeeze(-1), size),
            ]
        )


def model_of(join: str) -> Several:
    torch.manual_seed(0)
    return Several(join).double()


def batch_of(step: int = 0) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(step)
    return (
        torch.randn(BATCH, 16, generator=draw, dtype=torch.float64),
        torch.randint(0, 5, (BATCH,), generator=draw),
        torch.randint(0, 3, (BATCH,), generator=draw),
        torch.randn(BATCH, generator=draw, dtype=torch.float64),
    )


def example_of(join: str) -> Example:
    return Example(model=model_of(join), inputs=batch_of())


def _trained(model: nn.Module) -> list[float]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch_of(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def alone(join: str) -> tuple[list[float], Arrays]:
    """Losses and state after training on one device."""
    model = model_of(join)
    return _trained(model), _arrays(model.state_dict())


def by_plans(join: str, plans: Sequence[Plan]) -> list[tuple[list[float], Arrays]]:
    """The same by each of some plans."""
    outcomes = []
    for plan in plans:
        with parallelize(model_of(join), plan) as model:
            losses = _trained(model)
            state = model.whole_state(to_rank=None)
            assert state is not None
            outcomes.append((losses, _arrays(state)))
    return outcomes


def _arrays(state: Mapping[str, Tensor]) -> Arrays:
    return {key: tensor.detach().numpy().copy() for key, tensor in state.items()}
