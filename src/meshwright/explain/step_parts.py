"""Step time breakdown of the busiest device: compute, exposed communication, pipeline bubble.
Enters: a `Simulation`. Leaves: its `StepParts`, which add up to the step.

With T the step, C what the busiest device computes and P what of the critical path is communication
(nothing of it is waiting, see `critical_path`):
    exposed = min(P, T - C)     the rest of P overlaps with computing
    bubble  = T - C - exposed   the device idles while the path computes on other stages
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.units import Seconds
from meshwright.explain.critical_path import critical_path
from meshwright.explain.utilisation import is_op_group_pass
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.simulation import Simulation


class StepParts(NamedTuple):
    """Of one step. Predicted."""

    compute: Seconds
    exposed: Seconds
    """Communication that the device waits for."""
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
    moving = sum(
        piece.end - piece.start
        for piece in path
        if not is_op_group_pass(labels.kind[piece.task]) and labels.kind[piece.task] != "update"
    )
    # In whole nanoseconds, as the simulation has them: a bubble is not what rounding leaves.
    idle = max(0, round((prediction.step - prediction.compute) * NANO))
    exposed = min(moving, idle)
    bubble = Seconds((idle - exposed) / NANO)
    return StepParts(prediction.compute, Seconds(exposed / NANO), bubble)
