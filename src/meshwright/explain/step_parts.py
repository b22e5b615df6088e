"""Step time breakdown of the busiest device: compute, exposed communication, waiting for the host,
pipeline bubble.
Enters: a `Simulation`. Leaves: its `StepParts`, which add up to the step.

With T the step, C what the busiest device computes, P what of the critical path is communication
and H what is launches of kernels (nothing of it is waiting, see `critical_path`):
    exposed = min(P, T - C)             the rest of P overlaps with computing
    host    = min(H, T - C - exposed)   the device idles while its host launches
    bubble  = T - C - exposed - host    it idles while the path computes on other stages
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.quantities import Seconds
from meshwright.explain.critical_path import critical_path
from meshwright.explain.utilisation import is_op_group_pass
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.host import LAUNCH
from meshwright.simulate.simulation import Simulation


class StepParts(NamedTuple):
    """Of one step. Predicted."""

    compute: Seconds
    exposed: Seconds
    """Communication that the device waits for."""
    host: Seconds
    """Waiting for the host to launch kernels."""
    bubble: Seconds
    """Waiting for what other devices compute."""

    @property
    def step(self) -> float:
        """All of it."""
        return sum(self)


def step_parts(simulation: Simulation) -> StepParts:
    """What a simulated step is made of."""
    labels, prediction = simulation.problem.labels, simulation.prediction
    path = critical_path(simulation.problem.tasks, simulation.timeline)
    moving = launching = 0
    for piece in path:
        kind = labels.kind[piece.task]
        if kind == LAUNCH:
            launching += piece.end - piece.start
        elif not is_op_group_pass(kind) and kind != "update":
            moving += piece.end - piece.start
    # In whole nanoseconds, as the simulation has them: a bubble is not what rounding leaves.
    idle = max(0, round((prediction.step - prediction.compute) * NANO))
    exposed = min(moving, idle)
    host = min(launching, idle - exposed)
    bubble = Seconds((idle - exposed - host) / NANO)
    return StepParts(prediction.compute, Seconds(exposed / NANO), Seconds(host / NANO), bubble)
