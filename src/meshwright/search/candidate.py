"""A plan that was simulated. Enters: nothing. Leaves: the noun."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.foundation.units import Bytes
from meshwright.plan.model import Plan, Prediction


class Candidate(NamedTuple):
    """A plan and what is predicted of it."""

    plan: Plan
    prediction: Prediction

    def fits(self, memory: Bytes) -> bool:
        """Whether no device holds more."""
        return self.prediction.memory.total <= memory
