"""A model of which a layer is frozen, trained by plans on ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright import parallelize
from meshwright.plan.plan import Plan
from support.loop_bodies import batch_of, frozen_net


class Frozen(NamedTuple):
    """What a step with frozen parameters leaves, and what it sends."""

    gradients: dict[str, bool]
    """Whether each parameter has one."""
    kept: dict[str, bool]
    """Whether its optimizer keeps a state of it."""
    unchanged: dict[str, bool]
    sent: int


def freezing(plans: dict[str, Plan]) -> dict[str, Frozen]:
    """What two steps leave by each plan of the model whose first layer is frozen."""
    return {name: _frozen(plan) for name, plan in plans.items()}


def _frozen(plan: Plan) -> Frozen:
    model = parallelize(frozen_net(), plan)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    named = dict(model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for step in range(2):
        sent = model.executor.wire.sent
        optimizer.zero_grad()
        model(*batch_of(step)).backward()
        optimizer.step()
        sent = model.executor.wire.sent - sent
    return Frozen(
        {name: parameter.grad is not None for name, parameter in named.items()},
        {name: bool(optimizer.state.get(parameter)) for name, parameter in named.items()},
        {name: _local_equal(parameter, before[name]) for name, parameter in named.items()},
        sent,
    )


def _local_equal(one: Tensor, other: Tensor) -> bool:
    pair = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in (one, other)]
    return torch.equal(*pair)
