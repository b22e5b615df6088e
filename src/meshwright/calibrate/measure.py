"""Operator profiling: forward and backward seconds of one call on a real device. Enters: a call.
Leaves: a row of a table of prices.

The forward pass is that of training: it keeps what the backward pass needs. The backward pass makes
the gradients of all inputs that can have one. Which calls are worth measuring is not known here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.base.quantities import Seconds
from meshwright.calibrate.operands import drawn
from meshwright.calibrate.timing import seconds_of, timing_stream
from meshwright.capture.execution.shard_kernels import Operands, run_call
from meshwright.cost.profile_table import MeasuredCall
from meshwright.graph.operator_graph import Call


def measure_call(call: Call, device: torch.device, *, budget: Seconds) -> MeasuredCall:
    """Forward and backward seconds, each from readings that take about the budget.

    >>> from meshwright.graph.operator_graph import Spec
    >>> x = Spec("float32", (8, 8))
    >>> relu = Call(kind="relu", inputs=(x,), outputs=(x,))
    >>> row = measure_call(relu, torch.device("cpu"), budget=Seconds(0.001))
    >>> row.forward > 0, row.backward is not None
    (True, True)
    """
    with timing_stream(device):
        operands = drawn(call, device)
        forward = seconds_of(lambda _: run_call(call, operands), device, budget)
        return MeasuredCall(
            call=call, forward=forward, backward=_backward(call, operands, device, budget)
        )


def _backward(
    call: Call, operands: Operands, device: torch.device, budget: Seconds
) -> Seconds | None:
    wanted = [tensor for tensor in operands if tensor is not None and tensor.requires_grad]
    arriving = [torch.randn_like(output) for output in _learnt(call, operands)]
    if not wanted or not arriving:
        return None

    def gradients(outputs: tuple[Tensor, ...]) -> object:
        return torch.autograd.grad(outputs, wanted, arriving, retain_graph=True, allow_unused=True)

    return seconds_of(gradients, device, budget, before=lambda: _learnt(call, operands))


def _learnt(call: Call, operands: Operands) -> tuple[Tensor, ...]:
    """The results through which gradients flow back."""
    return tuple(output for output in run_call(call, operands) if output.requires_grad)
