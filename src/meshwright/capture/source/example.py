"""`Example`: a model with example inputs, and how its output becomes a loss.

Enters: an `nn.Module` and tensors, on any device. Leaves: an `Example`, the noun that every
source (the zoo, a user's function, Transformers) hands to `capture`. Knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor, nn

from meshwright.base.errors import InputError

MODEL = "model"
"""Where a `Step` keeps the user's model; no name in the graph shows it."""

Loss = Callable[..., Tensor]
"""Called with the model's output and then the targets; gives a scalar."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A model and one call of it: `loss(model(*inputs, **named), *targets)`.

    Without a loss the output itself is the loss, if it is a scalar; or its entry "loss"; or the
    only scalar with a gradient in a tuple, as in `return logits, loss`.
    """

    model: nn.Module
    inputs: tuple[object, ...] = ()
    named: Mapping[str, object] = {}
    loss: Loss | None = None
    targets: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user should know of it."""


class Step(nn.Module):
    """An example's model and loss as one module, so that one call is one forward pass."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model = example.model
        self._loss = example.loss
        # Parts of a model may be in another mode than the whole, as a frozen teacher is.
        self.training = example.model.training

    def forward(
        self,
        inputs: tuple[object, ...],
        named: Mapping[str, object],
        targets: tuple[Tensor, ...],
    ) -> object:
        """The loss, or if there is none whatever the model gives."""
        return self.loss_of(self.model(*inputs, **named), targets)

    def loss_of(self, output: object, targets: tuple[Tensor, ...]) -> object:
        """The loss of what the model gave, or if there is none all of it."""
        if self._loss is not None:
            return _scalar(self._loss(output, *targets))
        if isinstance(output, Mapping) and output.get("loss") is not None:
            return _scalar(output["loss"])
        if isinstance(output, tuple | list):
            numbers = [entry for entry in output if _is_trained_number(entry)]
            if len(numbers) == 1:
                return numbers[0]
        return output


def _is_trained_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.shape == () and value.requires_grad


def _scalar(loss: object) -> Tensor:
    if not isinstance(loss, Tensor):
        raise InputError(
            f"the loss is of type {type(loss).__name__!r}", "return one scalar tensor from it"
        )
    if loss.numel() != 1:
        raise InputError(
            f"the loss has shape {tuple(loss.shape)}, not one number",
            "reduce it, as with .mean()",
        )
    return loss.reshape(())
