"""What is captured: a model with example inputs, and how its output becomes a loss.

Enters: an `nn.Module` and tensors, on any device. Leaves: an `Example`, the noun that every
source (the zoo, a user's function, Transformers) hands to `capture`. Knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor, nn

Loss = Callable[..., Tensor]
"""Called with the model's output and then the targets; gives a scalar."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A model and one call of it: `loss(model(*inputs, **named), *targets)`.

    Without a loss the output itself is the loss, if it is a scalar or has an entry "loss".
    """

    model: nn.Module
    inputs: tuple[object, ...] = ()
    named: Mapping[str, object] = {}
    loss: Loss | None = None
    targets: tuple[Tensor, ...] = ()


class Step(nn.Module):
    """An example's model and loss as one module, so that one call is one forward pass."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model = example.model
        self._loss = example.loss

    def forward(
        self,
        inputs: tuple[object, ...],
        named: Mapping[str, object],
        targets: tuple[Tensor, ...],
    ) -> object:
        """The loss, or without one whatever the model gives."""
        output = self.model(*inputs, **named)
        return output if self._loss is None else self._loss(output, *targets)
