"""The autograd tape of a segment: graph edges kept for its backward pass. Enters: the values that
enter the segment and its outputs. Leaves: a `Taped`, and from it the gradients of what entered.

Kept are edges of autograd's graph, not tensors: what lies between two segments is in memory only
for as long as an operator has saved it, as if there were no segments. Parameters stay anyhow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge

from meshwright.run.exec.segment_execution import Leaf


class Taped(NamedTuple):
    """Where gradients enter and leave the backward pass of a segment; None where none does."""

    leaves: tuple[GradientEdge | Tensor | None, ...]
    outputs: tuple[GradientEdge | None, ...]


class _Entered(Function):
    """The first node of a segment's graph: a leaf's own would keep its value."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


Arrive = Callable[[Leaf, Tensor], Tensor]
"""Takes the gradient of a parameter, and gives what is kept instead of it."""


def entered(
    leaves: Sequence[Leaf], values: Sequence[Tensor], arrive: Arrive | None
) -> Iterator[Tensor]:
    """Values that enter a segment, ready to get gradients where any is wanted.

    Gradients of parameters may arrive while the backward pass goes on: with several micro-batches
    each is in memory only until it is added to the sum of the others.
    """
    anchor = torch.zeros((), requires_grad=True)
    for leaf, value in zip(leaves, values, strict=True):
        differentiable = value.is_floating_point() or value.is_complex()
        if leaf.return_ is None or not differentiable:
            yield value
        elif leaf.parameter:
            parameter = value.detach().requires_grad_()
            if arrive is not None:
                parameter.register_hook(partial(arrive, leaf))  # type: ignore[no-untyped-call]
            yield parameter
        else:
            yield _Entered.apply(anchor, value.detach())  # type: ignore[no-untyped-call]


def segment_tape(values: Sequence[Tensor], outputs: Sequence[Tensor]) -> Taped:
    """What to keep of a segment that has run."""
    leaves = (value if value.requires_grad and value.is_leaf else _edge(value) for value in values)
    return Taped(tuple(leaves), tuple(map(_edge, outputs)))


def _edge(tensor: Tensor) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def gradients(tape: Taped, arriving: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients of what entered, given those of outputs; None where there is none."""
    flowing = [
        (output, gradient)
        for output, gradient in zip(tape.outputs, arriving, strict=True)
        if gradient is not None and output is not None
    ]
    wanted: Any = [leaf for leaf in tape.leaves if leaf is not None]
    if not flowing or not wanted:
        return (None,) * len(tape.leaves)
    derivatives = iter(
        torch.autograd.grad(
            [output for output, _ in flowing],
            wanted,
            [gradient for _, gradient in flowing],
            allow_unused=True,
        )
    )
    return tuple(None if leaf is None else next(derivatives) for leaf in tape.leaves)
