"""The unary relaxation of the lower bound: op groups one by one. Enters: a schedule, ways of units,
trips of tensors. Leaves: a game.

What a copy across the network is worth is a weight (`network_traffic`), so that a mean is a sum
over units, and its least value is found unit by unit. Exchanges that neither sum nor copy, and
delays, do not count: `pairwise_tables` knows more, and takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.bounds.degrees import ShardingDegrees
from meshwright.bounds.inequalities import InequalityLoads, StepInequalities
from meshwright.bounds.network_traffic import MeshAssignment, NetworkTraffic, TensorTransfers
from meshwright.bounds.packed import PackedArrays

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class BoundWeights(NamedTuple):
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

    def mixed(self, other: BoundWeights, part: float) -> BoundWeights:
        """A weighted mean."""
        return BoundWeights(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class UnaryCosts(NamedTuple):
    """What one choice of seats costs, or a mean of several."""

    duration: Floats
    """[tasks]"""
    work: Floats
    """[tasks] the duration times the share of devices."""
    copies: Floats
    """[slots]"""
    parts: Floats
    """[slots]"""

    def mixed(self, other: UnaryCosts, part: float) -> UnaryCosts:
        """A weighted mean."""
        return UnaryCosts(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class AlikeOpGroups(NamedTuple):
    """Units that are alike."""

    units: Whole
    ways: ShardingDegrees
    seats: MeshAssignment

    def times(self, micro_batches: int) -> Floats:
        """[4, seats] how long both passes take, each also by the share of devices in a step."""
        ways, often = self.ways, self.ways.share * micro_batches
        return np.stack((ways.forward, ways.forward * often, ways.backward, ways.backward * often))[
            :, self.seats.way
        ]


class UnaryBound:
    """The game."""

    def __init__(
        self,
        schedule: StepInequalities,
        kinds: Sequence[AlikeOpGroups],
        trips: TensorTransfers,
        network: NetworkTraffic,
        micro_batches: int,
    ) -> None:
        self._schedule, self._kinds, self._trips = schedule, kinds, trips
        self._pace = network.pace
        self._costs = [
            np.concatenate(
                (
                    alike_groups.times(micro_batches),
                    alike_groups.seats.parts,
                    alike_groups.seats.copies,
                )
            )
            for alike_groups in kinds
        ]
        """For each kind [what counts, seats]."""
        slots = [np.arange(*trips.first[u : u + 2]) for u in range(len(trips.slots))]
        self._slots = [np.array([slots[u] for u in kind.units]) for kind in kinds]
        """For each kind [units, slots]."""
        self._passes = np.zeros((4, len(trips.slots)), np.int64)
        """[what a pass takes, units] where it begins, for all seats of a unit."""
        self._parts, self._copies, self._owner = np.zeros((3, trips.first[-1]), np.int64)
        """[slots] where its parts and copies begin, and its unit."""
        shelf = PackedArrays(np.float64)
        for kind, table, kind_slots in zip(kinds, self._costs, self._slots, strict=True):
            rows = shelf.place(table) + np.arange(len(table)) * table.shape[1]
            self._passes[:, kind.units] = rows[:4, None]
            self._parts[kind_slots], self._copies[kind_slots] = np.split(rows[4:], 2)
            self._owner[kind_slots] = kind.units[:, None]
        self._flat = shelf.laid

    def first(self) -> BoundWeights:
        """The weights of devices alone: as if nothing had to move."""
        phases = self._schedule.phases
        tasks, nothing = len(phases.number), np.zeros(len(self._trips.bytes))
        weights = BoundWeights(
            np.ones(tasks), np.zeros(tasks), np.zeros(phases.total), nothing, nothing
        )
        costs = self.costs(self.least(weights)[1])
        free = (np.ones(len(counts)) for counts in (costs.copies, costs.parts))
        return self.worst(UnaryCosts(costs.duration, costs.work, *free))[1]

    def least(self, weights: BoundWeights) -> tuple[float, Whole]:
        """The least sum over all ways, and the seat of every unit."""
        trips, pace = self._trips, self._pace
        # One more for units that have no task.
        chain, load = (np.append(w, 0.0) for w in (weights.chain, weights.load))
        part, copy = (np.zeros(trips.first[-1]) for _ in range(2))
        np.add.at(part, trips.source, pace * trips.bytes * weights.part)
        np.add.at(copy, trips.target, pace * trips.bytes * weights.copy)
        np.add.at(copy, trips.source, -pace * trips.bytes * weights.copy)
        total = float(weights.update @ self._schedule.updates - pace * trips.bytes @ weights.part)
        chosen = np.zeros(len(trips.slots), np.int64)
        for kind, table, slots in zip(self._kinds, self._costs, self._slots, strict=True):
            forward, backward = (
                self._schedule.forward[kind.units],
                self._schedule.backward[kind.units],
            )
            counts = np.stack(
                (chain[forward], load[forward], chain[backward], load[backward]), axis=1
            )
            alike, which = _distinct(np.concatenate((counts, part[slots], copy[slots]), axis=1))
            cost = alike @ table
            at = cost.argmin(axis=1)
            chosen[kind.units] = at[which]
            total += float(cost[np.arange(len(at)), at][which].sum())
        return total, chosen

    def costs(self, chosen: Whole) -> UnaryCosts:
        """What one seat of every unit costs."""
        duration, work = np.zeros((2, len(self._schedule.phases.number)))
        for tasks, first in ((self._schedule.forward, 0), (self._schedule.backward, 2)):
            has = np.flatnonzero(tasks >= 0)
            duration[tasks[has]], work[tasks[has]] = self._flat[
                self._passes[first : first + 2, has] + chosen[has]
            ]
        seat = chosen[self._owner]
        copies, parts = self._flat[self._copies + seat], self._flat[self._parts + seat]
        return UnaryCosts(duration, work, copies, parts)

    def worst(self, costs: UnaryCosts) -> tuple[float, BoundWeights]:
        """The largest of the inequalities for some costs, and its weights."""
        trips, pace = self._trips, self._pace
        more = costs.copies[trips.target] - costs.copies[trips.source]
        summed = (costs.parts[trips.source] - 1) * trips.bytes * pace
        moved = summed + np.maximum(more, 0.0) * trips.bytes * pace
        most, shares = self._schedule.worst(
            InequalityLoads(costs.duration, costs.work, moved, moved, summed)
        )
        crossing = shares.moved + shares.waited
        part, copy = crossing + shares.last, crossing * (more > 0)
        return most, BoundWeights(shares.chain, shares.load, shares.update, part, copy)


def _distinct(rows: Floats) -> tuple[Floats, list[int]]:
    """The different rows, few as layers repeat, and for each row which of them it is."""
    number: dict[bytes, int] = {}
    which = [number.setdefault(row.tobytes(), len(number)) for row in rows]
    return np.frombuffer(b"".join(number)).reshape(len(number), rows.shape[1]), which
