"""The largest mixture of inequalities. Enters: phases, ways of units, trips of tensors, updates.
Leaves: a number of nanoseconds.

Let x be a way for every unit. For any number q of a phase (`phases`),
    step >= sum over p < q of max(chain_p(x), load_p(x)) + R_q(x)                                (1)
where R_q is what a resource is needed for, on average over its instances, by all that can only run
from phase q on: devices, by the loads of the phases from q on and by updates; or the network, by
what has to cross it (`crossing`). A weighted mean of such sums is no more than the step either, and
it is a sum over units, so that its least value over all x is found unit by unit:
    step >= sum over units of min over ways of a weighted sum of what the way costs    `Game.least`
The weights are found by a game: for given ones take the x with the least sum, find the largest (1)
for this x (`Game.worst`), and mix it in (fictitious play). The best least sum is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.search.joint.bounds.crossing import Network, Seats, Trips
from meshwright.search.joint.bounds.phases import Phases
from meshwright.search.joint.bounds.ways import Ways

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

CLOSE = 1e-4
"""A game is over when the best sum is so near to what no mixture can exceed."""


class Weights(NamedTuple):
    """How much everything counts."""

    chain: Floats
    """[tasks]"""
    load: Floats
    """[tasks]"""
    update: Floats
    """[phases] of what can only run from a phase on."""
    part: Floats
    """[trips] of summing up a micro-batch's tensor."""
    copy: Floats
    """[trips] of copying it."""

    def mixed(self, other: Weights, part: float) -> Weights:
        """A weighted mean."""
        return Weights(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class Costs(NamedTuple):
    """What one choice of seats costs, or a mean of several."""

    duration: Floats
    """[tasks]"""
    work: Floats
    """[tasks] the duration times the share of devices."""
    copies: Floats
    """[slots]"""
    parts: Floats
    """[slots]"""

    def mixed(self, other: Costs, part: float) -> Costs:
        """A weighted mean."""
        return Costs(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class Kind(NamedTuple):
    """Units that are alike."""

    units: Whole
    ways: Ways
    seats: Seats


class Game:
    """The inequalities of one graph."""

    def __init__(
        self,
        phases: Phases,
        kinds: Sequence[Kind],
        trips: Trips,
        edges: Whole,
        updates: Floats,
        network: Network,
        micro_batches: int,
    ) -> None:
        self._phases, self._kinds, self._trips = phases, kinds, trips
        self._edges, self._updates, self._pace = edges, updates, network.pace
        self._phase = phases.number
        units = len(trips.slots)
        self._there, self._back = (np.full(units, -1, np.int64) for _ in range(2))
        """[units] tasks, or -1"""
        for task, (unit, back) in enumerate(zip(phases.unit, phases.back, strict=True)):
            (self._back if back else self._there)[unit] = task
        starts = [
            (self._back if back else self._there)[unit]
            for (unit, _), back in zip(trips.units, trips.back, strict=True)
        ]
        self._begins = np.array([self._phase[t] if t >= 0 else 0 for t in starts], np.int64)
        """[trips] the phase in which it can begin."""
        self._costs = [
            np.concatenate((
                np.stack((own.there, own.there * own.share * micro_batches,
                          own.back, own.back * own.share * micro_batches))[:, seats.way],
                seats.parts, seats.copies,
            ))
            for _, own, seats in kinds
        ]  # fmt: skip
        """For each kind [what counts, seats]."""
        slots = [np.arange(*trips.first[u : u + 2]) for u in range(units)]
        self._slots = [np.array([slots[u] for u in kind.units]) for kind in kinds]
        """For each kind [units, slots]."""

    def least(self, weights: Weights) -> tuple[float, Whole]:
        """The least sum over all ways, and the seat of every unit."""
        own, pace = self._trips, self._pace
        # One more for units that have no task.
        chain, load = (np.append(w, 0.0) for w in (weights.chain, weights.load))
        part, copy = (np.zeros(own.first[-1]) for _ in range(2))
        np.add.at(part, own.source, pace * own.bytes * weights.part)
        np.add.at(copy, own.target, pace * own.bytes * weights.copy)
        np.add.at(copy, own.source, -pace * own.bytes * weights.copy)
        total = float(weights.update @ self._updates - pace * own.bytes @ weights.part)
        chosen = np.zeros(len(own.slots), np.int64)
        for kind, table, slots in zip(self._kinds, self._costs, self._slots, strict=True):
            there, back = self._there[kind.units], self._back[kind.units]
            counts = np.stack((chain[there], load[there], chain[back], load[back]), axis=1)
            alike, which = _distinct(np.concatenate((counts, part[slots], copy[slots]), axis=1))
            cost = alike @ table
            at = cost.argmin(axis=1)
            chosen[kind.units] = at[which]
            total += float(cost[np.arange(len(at)), at][which].sum())
        return total, chosen

    def costs(self, chosen: Whole) -> Costs:
        """What one seat of every unit costs."""
        duration, work = (np.zeros(len(self._phase)) for _ in range(2))
        copies, parts = (np.ones(self._trips.first[-1]) for _ in range(2))
        for kind, table, slots in zip(self._kinds, self._costs, self._slots, strict=True):
            at = chosen[kind.units]
            for tasks, row in ((self._there, 0), (self._back, 2)):
                has = tasks[kind.units] >= 0
                duration[tasks[kind.units[has]]] = table[row, at[has]]
                work[tasks[kind.units[has]]] = table[row + 1, at[has]]
            copies[slots] = kind.seats.copies[:, at].T
            parts[slots] = kind.seats.parts[:, at].T
        return Costs(duration, work, copies, parts)

    def worst(self, costs: Costs) -> tuple[float, Weights]:
        """The largest of the sums (1) for some costs, and its weights."""
        own, count, trips = self._phases, self._phases.total, self._trips
        more = costs.copies[trips.target] - costs.copies[trips.source]
        moved = costs.parts[trips.source] - 1 + np.maximum(more, 0.0)
        moved *= trips.bytes * self._pace
        chain = own.longest(costs.duration, np.append(moved, 0.0)[self._edges])
        load = np.bincount(self._phase, costs.work, count)
        early = np.concatenate(([0.0], np.cumsum(np.maximum(chain.length, load))))
        computing = early + _suffixes(load + self._updates)
        moving = early + _suffixes(np.bincount(self._begins, moved * trips.times, count))
        q = int(np.maximum(computing, moving).argmax())
        crosses = bool(moving[q] > computing[q])
        late = np.arange(count) >= q
        chained = ~late & (chain.length >= load)
        crossing = trips.times * ((self._begins >= q) & crosses)
        here = np.where(own.leaves, own.number[own.source], own.number[own.target])
        on_chain = self._edges[chain.edge & chained[here]]
        crossing[on_chain[on_chain >= 0]] += 1.0
        weights = Weights(
            (chained[self._phase] & chain.task).astype(np.float64),
            (~chained & ~(late & crosses))[self._phase].astype(np.float64),
            (late & (not crosses)).astype(np.float64),
            crossing,
            crossing * (more > 0),
        )
        return float(max(computing[q], moving[q])), weights

    def value(self, rounds: int, wanted: float = np.inf) -> float:
        """The largest least sum that was found; the first that is as large as is wanted."""
        tasks, nothing = len(self._phase), np.zeros(len(self._trips.bytes))
        weights = Weights(
            np.ones(tasks), np.zeros(tasks), np.zeros(self._phases.total), nothing, nothing
        )
        costs = self.costs(self.least(weights)[1])
        # The first weights are those of devices alone: as if nothing had to move.
        free = (np.ones(len(own)) for own in (costs.copies, costs.parts))
        _, weights = self.worst(Costs(costs.duration, costs.work, *free))
        best, most = 0.0, np.inf
        for number in range(rounds):
            total, chosen = self.least(weights)
            best = max(best, total)
            if best >= min(wanted, most * (1 - CLOSE)):
                break
            part = 2 / (number + 3)
            costs = costs.mixed(self.costs(chosen), part if number else 1.0)
            upper, other = self.worst(costs)
            most = min(most, upper)
            weights = weights.mixed(other, part)
        return best


def _distinct(rows: Floats) -> tuple[Floats, list[int]]:
    """The different rows, few as layers repeat, and for each row which of them it is."""
    number: dict[bytes, int] = {}
    which = [number.setdefault(row.tobytes(), len(number)) for row in rows]
    return np.frombuffer(b"".join(number)).reshape(len(number), rows.shape[1]), which


def _suffixes(values: NDArray[np.number]) -> Floats:
    """The sums of the values from each place on, and 0."""
    return np.concatenate((np.cumsum(values[::-1])[::-1], [0.0]))
