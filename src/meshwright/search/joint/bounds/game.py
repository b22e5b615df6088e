"""The largest mixture of inequalities. Enters: phases, ways of units, updates. Leaves: a number of
nanoseconds, and what it is made of.

Let x be a way for every unit. The inequalities of `phases` say, for any number q of a phase,
    step >= sum over p < q of max(chain_p(x), load_p(x)) + sum over p >= q of load_p(x) + U_q   (1)
where U_q is what updates need on average over the devices that can only run in phase q or later:
they take the time of devices, too. A weighted mean of such sums is no more than the step either,
and it is a sum over units, so that its least value over all x is found unit by unit:
    step >= sum over units of min over ways of (a there + b s there + c back + d s back) + e U  (2)
                                                                                `Game.least`
The weights a, ..., e are found by a game: for given ones take the x with the least sum, find the
largest (1) for this x (`Game.worst`), and mix it in (fictitious play). The best (2) is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.search.joint.bounds.phases import Phases
from meshwright.search.joint.bounds.ways import Ways

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class Weights(NamedTuple):
    """How much each task, and each update, counts."""

    chain: Floats
    """[tasks]"""
    load: Floats
    """[tasks]"""
    update: Floats
    """[phases] of what can only run from a phase on"""

    def mixed(self, other: Weights, part: float) -> Weights:
        """A weighted mean."""
        return Weights(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class Game:
    """The inequalities of one graph."""

    def __init__(
        self,
        phases: Phases,
        kinds: Sequence[int],
        ways: Sequence[Ways],
        updates: Floats,
        micro_batches: int,
    ) -> None:
        """Ways by kind of unit, the kind of each unit, what updates need by phase."""
        self._phases, self._updates = phases, updates
        self._phase = np.array(phases.phase, np.int64)
        back = np.array(phases.back, np.bool_)
        unit = np.array(phases.unit, np.int64)
        self._kind = np.array(kinds, np.int64)[unit]
        """[tasks]"""
        self._unit, self._back = unit, back
        self._units = np.unique(unit)
        self._tables = [
            np.stack(
                (own.there, own.there * own.share * micro_batches,
                 own.back, own.back * own.share * micro_batches)
            )
            for own in ways
        ]  # fmt: skip
        self._of_kind = [self._units[np.array(kinds)[self._units] == k] for k in range(len(ways))]

    def least(self, weights: Weights) -> tuple[float, Whole]:
        """The least sum of all ways, and the way of every unit."""
        per_unit = np.zeros((int(self._unit.max(initial=-1)) + 1, 4))
        for column, own, tasks in (
            (0, weights.chain, ~self._back),
            (1, weights.load, ~self._back),
            (2, weights.chain, self._back),
            (3, weights.load, self._back),
        ):
            per_unit[self._unit[tasks], column] = own[tasks]
        chosen, total = np.zeros(len(per_unit), np.int64), float(weights.update @ self._updates)
        for units, table in zip(self._of_kind, self._tables, strict=True):
            if len(units):
                cost = per_unit[units] @ table
                chosen[units] = cost.argmin(axis=1)
                total += float(cost.min(axis=1).sum())
        return total, chosen

    def worst(self, chosen: Whole) -> tuple[float, Weights]:
        """The largest of the sums (1) for one way of every unit, and its weights."""
        own = self._phases
        rows = np.array(
            [
                self._tables[kind][2 * back : 2 * back + 2, chosen[unit]]
                for kind, back, unit in zip(
                    self._kind, self._back.astype(int), self._unit, strict=True
                )
            ]
        ).reshape(-1, 2)
        duration, work = rows.T
        chain, inside = own.longest(duration)
        load = np.bincount(self._phase, work, own.count)
        highest = np.maximum(chain, load)
        late = np.concatenate((np.cumsum((load + self._updates)[::-1])[::-1], [0.0]))
        early = np.concatenate(([0.0], np.cumsum(highest)))
        q = int((early + late).argmax())
        chained = (np.arange(own.count) < q) & (chain >= load)
        in_chain = chained[self._phase]
        weights = Weights(
            (in_chain & inside).astype(np.float64),
            (~in_chain).astype(np.float64),
            (np.arange(own.count) >= q).astype(np.float64),
        )
        return float((early + late)[q]), weights

    def value(self, rounds: int) -> float:
        """The largest least sum that was found."""
        tasks, count = len(self._phase), self._phases.count
        weights = Weights(np.ones(tasks), np.zeros(tasks), np.zeros(count))
        _, chosen = self.least(weights)
        most, weights = self.worst(chosen)
        best = 0.0
        for number in range(rounds):
            total, chosen = self.least(weights)
            best = max(best, total)
            upper, other = self.worst(chosen)
            most = min(most, upper)
            if best >= most * (1 - CLOSE):
                break
            weights = weights.mixed(other, 2 / (number + 3))
        return best


CLOSE = 1e-4
"""A game is over when the best sum is so near to what no mixture can exceed."""
