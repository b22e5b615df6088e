"""Loops that compute with parameters and gradients themselves, for ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from meshwright import parallelize
from meshwright.plan.plan import Plan
from support.loop_bodies import WORDS, batch_of, net_of, told


def loss_of(model: nn.Module, seed: int) -> Tensor:
    tokens, scale, targets = batch_of(seed)
    return functional.cross_entropy(model(tokens, scale), targets)


def stepping(model: nn.Module, change: Callable[[Any], Any]) -> list[float]:
    """Three steps, with what a loop does to parameters or adds to the loss, and evaluations."""
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        term = change(model)
        loss: Any = loss_of(model, step) + term
        losses.append(loss.item())
        loss.backward()
        mask = (torch.arange(WORDS) % 2).double()[:, None]
        if model.words.weight.grad is not None:  # type: ignore[union-attr]
            model.words.weight.grad.mul_(mask)  # type: ignore[union-attr, operator]
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        losses.append(loss_of(model, 7).item())
    model.train()
    return [*losses, loss_of(model, 8).item()]


def penalised(model: Any) -> Any:
    """Penalties as people write them, of all parameters and of some."""
    penalty = 0.01 * sum(parameter.abs().sum() for parameter in model.parameters())
    return penalty + 0.01 * model.layers[0].weight.sum() + model.norm.weight.norm()


def assigned(model: Any) -> float:
    """Weights drawn anew, clipped and put in the place of others."""
    torch.manual_seed(3)
    nn.init.xavier_uniform_(model.layers[0].weight)
    for parameter in model.parameters():
        parameter.data.clamp_(-0.5, 0.5)
        parameter.data = parameter.data + 0.01 * torch.randn_like(parameter)
        parameter.data = parameter.data + 0.01 * torch.randn(parameter.shape).double()
    return 0.0


LOOPS = {"penalised": penalised, "assigned": assigned}


def alone() -> dict[str, list[float]]:
    return {name: stepping(net_of(), loop) for name, loop in LOOPS.items()}


def by_plans(plans: dict[str, Plan]) -> dict[str, dict[str, list[float]]]:
    """What each loop gives by each plan."""
    return {
        name: {kind: stepping(parallelize(net_of(), plan), loop) for kind, loop in LOOPS.items()}
        for name, plan in plans.items()
    }


def refused(plans: dict[str, Plan]) -> dict[str, str]:
    """What is said where ranks have other parameters, or cut ones."""
    said = {}
    model: Any = parallelize(net_of(), plans["pp 2"])
    penalty: Any = sum(parameter.abs().sum() for parameter in model.parameters())
    said["penalty"] = told(lambda: (model.loss(*batch_of()) + penalty).backward())
    model = parallelize(net_of(), plans["zero 3"])
    with torch.no_grad():
        said["row"] = told(lambda: model.words.weight[3].zero_())
    for optimizer in (torch.optim.Adafactor, torch.optim.Rprop, torch.optim.LBFGS):
        said[optimizer.__name__] = told(
            lambda kind=optimizer: kind(model.parameters()).step(lambda: model.loss(*batch_of()))  # type: ignore[misc]
        )
    said["autograd.grad"] = told(
        lambda: torch.autograd.grad(model.loss(*batch_of()), model.parameters())
    )
    said["around"] = told(lambda: DistributedDataParallel(model))
    return said
