"""Request and result of the island search: `IslandQuestion`, `IslandPlanned`. Enters: nothing.
Leaves: the nouns.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from meshwright.base.quantities import Seconds
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.island_plan import IslandPlan, IslandPrediction
from meshwright.plan.options import Options


class IslandQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, and on which islands; what a device may hold is what it has."""

    graph: OperatorGraph
    cluster: IslandCluster
    training: Options = Options()


class IslandCandidate(NamedTuple):
    """A plan over islands, and what is predicted of it."""

    plan: IslandPlan
    prediction: IslandPrediction

    @property
    def rank(self) -> tuple[int, float]:
        """Less is better: what fits before what does not, then the shorter step."""
        return self.prediction.missing, self.prediction.step


class IslandPlanned(NamedTuple):
    """The best plan, what it was chosen among, and how far from the best it can be."""

    question: IslandQuestion
    best: IslandCandidate
    alternatives: tuple[IslandCandidate, ...]
    """The best of each kind, by origin: equal shares, each island alone, one regular machine ..."""
    refused: tuple[tuple[str, str], ...]
    """What was not tried, each with the reason."""
    bound: Seconds
    """Work over speed: no plan is faster whose devices do not exceed their peaks."""
    searched: int
    """Regular plans that were searched for."""
    simulated: int
    """Parts that were simulated."""
    seconds: float

    @property
    def gap(self) -> float:
        """By how much a step can be longer than it must be, as a share of the bound."""
        return self.best.prediction.step / self.bound - 1 if self.bound else float("inf")
