"""Candidate: a simulated plan and its prediction; Pareto front of time and memory. Enters: nothing.
Leaves: the noun.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.base.quantities import Bytes
from meshwright.plan.plan import Plan, Prediction


class Candidate(NamedTuple):
    """A plan and what is predicted of it."""

    plan: Plan
    prediction: Prediction

    def fits(self, memory: Bytes) -> bool:
        """Whether no device holds more."""
        return self.prediction.memory.total <= memory


def pareto_front(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other beats in both time and memory, the fastest first."""
    kept: list[Candidate] = []
    for candidate in sorted(
        candidates, key=lambda it: (it.prediction.step, it.prediction.memory.total)
    ):
        if not kept or candidate.prediction.memory.total < kept[-1].prediction.memory.total:
            kept.append(candidate)
    return tuple(kept)
