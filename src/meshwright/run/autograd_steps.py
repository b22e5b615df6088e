"""Training step of a plan as a torch.autograd.Function. Enters: the values of a step's inputs.
Leaves: a loss, or a model's outputs, whose `backward` hands out gradients to parameters.

A step with targets (`LossStep`) runs forward and backward at once, micro-batch by micro-batch;
`backward` then only hands out, times whatever the loss was scaled by. A step without them
(`OutputStep`) gives outputs, and runs backward once their gradients come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.distributed.tensor import DTensor

from meshwright.base.errors import InputError
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.output_gather import OutputGather
from meshwright.run.exec.two_passes import TwoPasses

Values = Mapping[str, Tensor]


class Around(NamedTuple):
    """What a step is done with."""

    executor: Executor
    training: bool
    share: bool
    """Whether inputs are this rank's share of the samples."""
    nothing: nn.Parameter | None
    """The parameter of a rank that has none."""


class Apart(NamedTuple):
    """What runs forward and backward apart."""

    executor: TwoPasses
    returning: OutputGather
    judge: Callable[[tuple[Tensor, ...], bool], None]
    """Refuses gradients that are not the same on all ranks."""
    watched: Callable[[], AbstractContextManager[None]]
    """Inside of it other ranks are expected to make progress."""


class LossStep(Function):
    """A whole step, whose gradients are handed out later; and outputs that have none."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, around: Around, values: Values, returning: OutputGather | None
    ) -> Any:
        """The loss, then outputs."""
        executor = around.executor
        loss = executor.step(values, training=around.training)
        _note(ctx, around)
        ctx.gradients = _taken(executor)
        ctx.set_materialize_grads(False)
        outputs = [] if returning is None else executor.outputs(returning, share=around.share)
        return loss, *outputs

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor | None) -> tuple[None, ...]:
        """Hand out gradients."""
        _refuse_more(ctx)
        loss, *outputs = _plain(arriving)
        if any(gradient is not None for gradient in outputs):
            raise InputError(
                "a gradient came for an output of a call that was given its targets: its backward "
                "pass was done with its loss",
                "call the model without targets (labels) and compute all of the loss from its "
                "outputs",
            )
        if loss is not None:
            _scale([gradient for _, gradient in ctx.gradients], loss)
            _hand_out(ctx)
        return (None,) * 4


class OutputStep(Function):
    """A forward pass, whose backward pass follows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, around: Around, values: Values, apart: Apart) -> Any:
        """The outputs."""
        executor = apart.executor
        executor.forward(values, train=True, training=around.training)
        outputs = executor.outputs(apart.returning, share=around.share)
        _note(ctx, around)
        ctx.apart, ctx.waiting, ctx.share = apart, executor.waiting(), around.share
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[None, ...]:
        """Run the backward pass, and hand out gradients."""
        _refuse_more(ctx)
        apart: Apart = ctx.apart
        gradients: Any = tuple(_plain(arriving))
        with apart.watched():
            apart.judge(gradients, ctx.share)
            apart.executor.backward(ctx.waiting, gradients, apart.returning, share=ctx.share)
        ctx.gradients, ctx.waiting = _taken(apart.executor), None
        _hand_out(ctx)
        return (None,) * 4


def _note(ctx: Any, around: Around) -> None:
    ctx.handed_out, ctx.nothing = False, around.nothing


def _plain(gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
    """Gradients as plain tensors: they are DTensors where users add terms of parameters."""
    return [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in gradients]


def _taken(executor: Executor) -> list[tuple[Any, Tensor]]:
    """The gradients of a step: theirs alone who take them, so that a loop that forgets its
    gradients gets their memory back.
    """
    pieces = [piece for piece in executor.parameters.pieces.values() if piece.gradient is not None]
    gradients = [(piece, piece.gradient) for piece in pieces]
    for taken in pieces:
        taken.gradient = None
    return gradients  # type: ignore[return-value]


def _refuse_more(ctx: Any) -> None:
    """Refuse a second backward pass, and a graph of this one, which no step has."""
    if torch.is_grad_enabled():
        raise InputError(
            "backward is asked to create_graph, and a plan's gradients have none: terms that are "
            "computed of them would not train",
            "compute them in the model's forward, by torch.func.grad, before it is captured",
        )
    if ctx.handed_out:
        raise InputError(
            "backward was called again on a loss whose gradients were handed out",
            "call the model again for another backward pass, or add up losses and call "
            "backward once",
        )


def _hand_out(ctx: Any) -> None:
    for piece, gradient in ctx.gradients:
        piece.hand_out(gradient)
    # What was scaled in place must not be scaled again.
    ctx.gradients, ctx.handed_out = [], True
    if ctx.nothing is not None:
        # A rank without gradients takes part in their norm.
        ctx.nothing.grad = torch.zeros_like(ctx.nothing)


def _scale(gradients: list[Tensor], by: Tensor) -> None:
    """Multiply gradients, in place; by one, as mostly, costs nothing where one can look."""
    if gradients and not (by.device.type == "cpu" and by.item() == 1.0):
        torch._foreach_mul_(gradients, by)
