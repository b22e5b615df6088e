"""Separate forward and backward passes for an external loss (all forward first, as in GPipe).
Enters: inputs without targets, and later gradients of the model's outputs. Leaves: these outputs,
and then gradients of parameters.

All micro-batches go forward first, since nobody knows gradients before: what a pipeline's schedule
saves of memory is lost. Operators of the plan's own loss do not run; those in one segment with the
model's run on zeros for targets, and nothing flows back from them. Several calls may wait for their
backward pass at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.run.exec.executor import Executor
from meshwright.run.exec.operator_kernels import DrawMoment
from meshwright.run.exec.output_gather import OutputGather

Waiting = dict[str, Any]
"""What an executor knows of a call between its passes."""

KEPT = (
    *("_inputs", "_values", "_tape", "_gradients", "_left", "_brought", "_settling"),
    *("_fetched", "_losses", "_kept", "_moment"),
)


class TwoPasses(Executor):
    """The same plan beside an executor of whole steps, with its parameters."""

    def __init__(self, steps: Executor, returned: Sequence[str]) -> None:
        super().__init__(
            steps.script.plan,
            steps.wire,
            steps.rank,
            steps.device,
            exact=steps.exact,
            backend=steps.backend,
            returned=returned,
            beside=steps,
        )
        self._beside = steps
        self._turn = sum(map(self._mine, self.script.instructions[: self.script.turn]))
        self._missing: dict[str, Tensor] = {}

    def forward(self, inputs: Mapping[str, Tensor], *, train: bool, training: bool) -> None:
        """The forward pass; its outputs are kept (`outputs`)."""
        beside = self._beside
        self.seed, self.steps, self.pulse = beside.seed, beside.steps, beside.pulse
        self.buffers, self.constants = beside.buffers, beside.constants
        self._begin({**self._zeros(inputs), **inputs})
        self._moment = DrawMoment(self.seed, self.steps, training)
        self._go(0, self._turn, train=train)
        for name in tuple(self._fetched):
            self._there(name)
        self._follow_statistics()
        beside.steps += 1

    def waiting(self) -> Waiting:
        """What the backward pass of this call needs, once its outputs were taken."""
        return {name: vars(self)[name] for name in KEPT}

    def backward(
        self, call: Waiting, gradients: Sequence[Tensor], returning: OutputGather, *, share: bool
    ) -> None:
        """The backward pass of a call; gradients are beside the parameters then."""
        vars(self).update(call)
        pieces = self._await(
            self._lane.begin(lambda: list(returning.cut(gradients, share=share))), "outputs"
        )
        for key, piece in pieces:
            self._gradients.add(key, piece)
        self._go(self._turn, len(self.instructions), train=True)
        for handle in self._settling:
            self._await(handle, "settle")
        for name in tuple(self._fetched):
            self._there(name)
        if self.script.parallel.machine.sizes:
            self._await(self._lane.begin(self.wire.finish), "outputs")
        for kept in (self._values, self._tape, self._inputs):
            kept.clear()

    def _go(self, first: int, last: int, *, train: bool) -> None:
        for number in range(first, last):
            self._perform(self.instructions[number], train)
            self.pulse()
            for key in self._dropped[number]:
                self._values.pop(key, None)

    def _zeros(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Zeros for the inputs that only the plan's own loss reads."""
        for tensor in self.script.plan.graph.inputs:
            if tensor.name not in inputs and tensor.name not in self._missing:
                self._missing[tensor.name] = torch.zeros(
                    tensor.shape, dtype=self._mover.dtype(tensor.name), device=self.device
                )
        return self._missing

    def _gradient(self, name: str, micro: int) -> Tensor | None:
        if name == self.script.plan.graph.loss:
            return None
        return super()._gradient(name, micro)
