"""Step time on one device, run eagerly: kernels or the host's launches, whichever is longer.
Enters: a graph, prices, an optimizer. Leaves: `StepPrice`, by pass.

The device works through kernels in order while the host launches them; whoever takes longer in all
sets the pace:
    step = max( Σ forward + Σ backward + update,
                modules · operators · (launch forward + launch backward) )
Several devices, and what overlaps between them, are the business of `simulate`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from meshwright.base.units import Seconds
from meshwright.cost.memory import Optimizer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.counts import input_needs_grad, tensors_requiring_grad
from meshwright.graph.model import OperatorGraph

TRAFFIC: dict[Optimizer, int] = {"sgd": 3, "momentum": 6, "adam": 19}
"""How often PyTorch's update over lists of tensors reads or writes each parameter's bytes."""

MODULES = 1.5
"""What a module's own Python adds to launching its operators, as a factor (fitted on an H200)."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the host needs to launch one operator."""

    forward: Seconds
    backward: Seconds


class StepPrice(NamedTuple):
    """One training step, predicted."""

    forward: Seconds
    backward: Seconds
    update: Seconds
    host: Seconds

    @property
    def seconds(self) -> Seconds:
        """What the slower of device and host takes."""
        return Seconds(max(self.forward + self.backward + self.update, self.host))


def training_step(
    graph: OperatorGraph,
    pricer: OperatorPricer,
    optimizer: Optimizer = "adam",
    host: Host | None = None,
) -> StepPrice:
    """The predicted time of a step; without a host only the device counts."""
    needing = tensors_requiring_grad(graph)
    forward_seconds = backward_seconds = 0.0
    for operator in graph.operators:
        wanted = input_needs_grad(operator, needing)
        flows = any(tensor.name in needing for tensor in operator.outputs)
        price = pricer.price(graph.call(operator), wanted if flows else (False,) * len(wanted))
        forward_seconds += price.forward.seconds
        backward_seconds += price.backward.seconds
    trained = sum(p.tensor.spec.bytes for p in graph.parameters if p.trainable)
    rates = pricer.rates
    moving = TRAFFIC[optimizer] * trained / (pricer.device.memory_bandwidth * rates.streaming)
    launching = 0.0
    if host is not None:
        launching = MODULES * len(graph.operators) * (host.forward + host.backward)
    return StepPrice(
        Seconds(forward_seconds),
        Seconds(backward_seconds),
        Seconds(moving + rates.launch * TRAFFIC[optimizer]),
        Seconds(launching),
    )
