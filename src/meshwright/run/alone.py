"""The same steps on one device. Enters: an example with its first weights, and batches. Leaves:
losses and weights of plain eager PyTorch, and how far a run is from them.

It knows nothing of plans but which of them must give other numbers, and uses no part of the
executor: it judges it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.capture.example import Example, Step
from meshwright.foundation.errors import InputError
from meshwright.graph.chance import draws
from meshwright.plan.model import OneDevice, Plan

Batch = tuple[Tensor, ...]
Update = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Alone(NamedTuple):
    """What one device has after the last step."""

    losses: tuple[float, ...]
    parameters: Mapping[str, Tensor]

    def against(self, losses: Sequence[float], state: Mapping[str, Tensor]) -> OneDevice:
        """How far the losses and the weights of a run are from these.

        >>> alone = Alone((2.0, 1.0), {"w": torch.tensor([4.0, -8.0]), "b": torch.zeros(2)})
        >>> found = alone.against((2.0, 1.5), {"w": torch.tensor([5.0, -8.0]), "b": torch.zeros(2)})
        >>> found.loss_error, found.parameter_error, found.parameter
        (0.5, 0.125, 'w')
        """
        pairs = zip(losses, self.losses, strict=True)
        errors = {name: _error(state[name], own) for name, own in self.parameters.items()}
        worst = max(errors, key=lambda name: errors[name])
        return OneDevice(
            loss=self.losses,
            loss_error=max(_error(_exact(own), _exact(one)) for own, one in pairs),
            parameter_error=errors[worst],
            parameter=worst,
        )


def _exact(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


def _error(found: Tensor, expected: Tensor) -> float:
    """Infinite where there is no number: that compares with nothing."""
    difference = (found.double().cpu() - expected.double().cpu()).abs()
    if not difference.numel():
        return 0.0
    largest = expected.double().abs().max().item()
    error = difference.max().item() / (largest or 1.0)
    return math.inf if math.isnan(error) else error


def train_alone(
    example: Example, batches: Iterable[Batch], update: Update, device: torch.device
) -> Alone:
    """Train the example's own model, a step for each batch; it keeps what it has learnt.

    A batch is a tensor for each of the example's, in their order.
    """
    step = Step(example).to(device)
    given, form = pytree.tree_flatten((example.inputs, dict(example.named), example.targets))
    optimizer = update(step.model.parameters())
    losses = []
    for batch in batches:
        tensors = iter(batch)
        leaves = [next(tensors).to(device) if isinstance(leaf, Tensor) else leaf for leaf in given]
        optimizer.zero_grad()
        loss = step(*pytree.tree_unflatten(leaves, form))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = {name: own.detach() for name, own in step.model.named_parameters()}
    return Alone(tuple(losses), parameters)


def refuse_incomparable(plan: Plan) -> None:
    """One device must compute the same numbers, but for rounding."""
    drawing = [own for own in plan.graph.operators if draws(own)]
    if drawing:
        raise InputError(
            f"operator {drawing[0].name!r} draws random numbers, on one device others than on many",
            "compare without dropout (a probability of 0) and without noise",
        )
    normalising = [own for own in plan.graph.operators if own.kind == "batch_norm"]
    if normalising and plan.options.micro_batches > 1:
        raise InputError(
            f"operator {normalising[0].name!r} normalises each of {plan.options.micro_batches} "
            "micro-batches by itself, and one device the whole batch",
            "compare a plan with one micro-batch",
        )
