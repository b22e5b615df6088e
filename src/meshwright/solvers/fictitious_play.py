"""Fictitious play (Brown 1951): the best mixture of lower bounds, as a matrix game. Enters: a game.
Leaves: nanoseconds that no way can beat.

Let x be a way for every unit. A weighted mean of the inequalities (`inequalities`) is no more than
the step, and its least value over all x is a lower bound:
    step >= min over x of the weighted mean                                   `FictitiousPlay.least`
The weights are found by playing: for given ones take the x with the least mean, find the largest
inequality for the mean of such x (`FictitiousPlay.worst`), and mix it in (fictitious play; later
rounds count more: after k of them one has a part of 3 / (k + 4)). The best least mean is kept.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]

CLOSE = 1e-4
"""A game is over when the best sum is so near to what no mixture can exceed."""


class MixedStrategy(Protocol):
    """Columns of numbers."""

    def mixed(self, other: Self, part: float) -> Self:
        """A weighted mean."""


Weights = TypeVar("Weights", bound=MixedStrategy)
Costs = TypeVar("Costs", bound=MixedStrategy)


class FictitiousPlay(Protocol[Weights, Costs]):
    """The inequalities and the ways of one graph."""

    def first(self) -> Weights:
        """Weights to begin with."""

    def least(self, weights: Weights) -> tuple[float, Whole]:
        """No more than the least mean over all ways, and ways for which it is about as small."""

    def costs(self, chosen: Whole) -> Costs:
        """What one way of every unit costs."""

    def worst(self, costs: Costs) -> tuple[float, Weights]:
        """The largest of the inequalities for some costs, and its weights."""


def value(
    game: FictitiousPlay[Weights, Costs], rounds: int, wanted: float = np.inf, known: float = 0.0
) -> float:
    """The largest least mean that was found; the first that is as large as is wanted, or what was
    found when none can be larger than what is known.
    """
    weights = game.first()
    costs: Costs | None = None
    best, most = 0.0, np.inf
    for number in range(rounds):
        total, chosen = game.least(weights)
        best = max(best, total)
        if best >= min(wanted, most * (1 - CLOSE)) or most <= known:
            break
        part = 3 / (number + 4)
        response = game.costs(chosen)
        costs = response if costs is None else costs.mixed(response, part)
        upper, other = game.worst(costs)
        most = min(most, upper)
        weights = weights.mixed(other, part)
    return best
