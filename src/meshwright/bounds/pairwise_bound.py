"""The pairwise Lagrangian lower bound, as a game for fictitious play. Enters: a schedule, choices
of units, what trips take. Leaves: a game.

A mean of inequalities is a graph of costs of choices and of pairs of them, whose least value
eliminations find, or a bound of it (`variable_elimination.bounded`). Tables stand once, however
many units and trips have them, one behind the other; who needs one knows where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled, inlined
from meshwright.bounds.inequalities import InequalityLoads, LoadShares, StepInequalities
from meshwright.bounds.packed import PackedArrays
from meshwright.bounds.pairwise_tables import PairChoices, TransferCosts
from meshwright.solvers.cost_network import NONE, CostNetwork, connect, empty_network, restart
from meshwright.solvers.variable_elimination import settled

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

PASSES = 4
"""Numbers of a seat: how long each pass takes, by itself and by the share of devices."""


class PairwiseTables(NamedTuple):
    """All that compiled code has to know."""

    forward: Whole
    """[units] tasks, or NONE."""
    backward: Whole
    """[units]"""
    seats: Whole
    """[units] where the times of its seats begin."""
    times: Floats
    """For each seat PASSES numbers."""
    choices: Whole
    """[units] where the first seats of its choices begin."""
    first: Whole
    """The first seat of each choice, and then how many seats there are."""
    one: Whole
    """[trips] the unit that it leads from."""
    other: Whole
    """[trips]"""
    pair: Whole
    """[trips] the number of its pair of units, NONE within a unit."""
    moved: Whole
    """[trips] where the table begins."""
    waited: Whole
    """[trips]"""
    last: Whole
    """[trips]"""
    prices: Floats
    lower: Whole
    """[pairs] the lower unit."""
    upper: Whole
    """[pairs]"""
    used: Whole
    """[pairs] the edge, NONE if nothing of it counts."""


class PairwiseGame:
    """The game."""

    def __init__(
        self,
        schedule: StepInequalities,
        choices: Sequence[PairChoices],
        trips: Sequence[TransferCosts],
    ) -> None:
        """Enter besides: the choices of each unit."""
        self._schedule = schedule
        self._tables = _tables(schedule, choices, trips)
        sizes = np.array([len(unit_choices.first) for unit_choices in choices], np.int64)
        pairs = self._tables.lower, self._tables.upper
        room = int((sizes[pairs[0]] * sizes[pairs[1]]).sum())
        self._rest = empty_network(sizes, len(pairs[0]), 2 * room)

    def first(self) -> LoadShares:
        """The weights of devices alone: as if nothing had to move."""
        phases = self._schedule.phases
        nothing = np.zeros(len(self._tables.one))
        tasks = len(phases.number)
        weights = LoadShares(
            np.ones(tasks), np.zeros(tasks), np.zeros(phases.total), nothing, nothing, nothing
        )
        spent = self.costs(self.least(weights)[1])
        return self._schedule.worst(spent._replace(moved=nothing, waited=nothing, last=nothing))[1]

    def least(self, weights: LoadShares) -> tuple[float, Whole]:
        """No more than the least mean, and the seat of every unit."""
        weigh(self._tables, weights, self._rest)
        chosen = np.zeros(len(self._rest.size), np.int64)
        total, self._rest = settled(self._rest, chosen)
        seat(self._tables, weights, chosen)
        return total + float(weights.update @ self._schedule.updates), chosen

    def costs(self, chosen: Whole) -> InequalityLoads:
        """What one seat of every unit costs."""
        tasks, trips = len(self._schedule.phases.number), len(self._tables.one)
        spent = InequalityLoads(*(np.zeros(size) for size in (tasks, tasks, trips, trips, trips)))
        fill_assignment_loads(self._tables, self._rest.size, chosen, np.zeros_like(chosen), spent)
        return spent

    def worst(self, costs: InequalityLoads) -> tuple[float, LoadShares]:
        """The largest of the inequalities for some costs, and its weights."""
        return self._schedule.worst(costs)


def _tables(
    schedule: StepInequalities, choices: Sequence[PairChoices], trips: Sequence[TransferCosts]
) -> PairwiseTables:
    times, first, prices = (
        PackedArrays(np.float64),
        PackedArrays(np.int64),
        PackedArrays(np.float64),
    )
    alike = {id(unit_choices): unit_choices for unit_choices in choices}
    rows = {key: np.ascontiguousarray(unit_choices.times.T) for key, unit_choices in alike.items()}
    ends = {
        key: np.append(unit_choices.first, unit_choices.times.shape[1])
        for key, unit_choices in alike.items()
    }
    pairs: dict[tuple[int, int], int] = {}
    for trip in trips:
        if trip.units[0] != trip.units[1]:
            pairs.setdefault((min(trip.units), max(trip.units)), len(pairs))
    both = np.array(list(pairs), np.int64).reshape(-1, 2).T.copy()
    return PairwiseTables(
        forward=schedule.forward,
        backward=schedule.backward,
        seats=_whole([times.place(rows[id(unit_choices)]) for unit_choices in choices]),
        times=times.laid,
        choices=_whole([first.place(ends[id(unit_choices)]) for unit_choices in choices]),
        first=first.laid,
        one=_whole([trip.units[0] for trip in trips]),
        other=_whole([trip.units[1] for trip in trips]),
        pair=_whole(
            [pairs.get((min(transfer.units), max(transfer.units)), NONE) for transfer in trips]
        ),
        moved=_whole([prices.place(trip.moved) for trip in trips]),
        waited=_whole([prices.place(trip.waited) for trip in trips]),
        last=_whole([prices.place(trip.last) for trip in trips]),
        prices=prices.laid,
        lower=both[0],
        upper=both[1],
        used=np.zeros(len(pairs), np.int64),
    )


def _whole(numbers: Sequence[int]) -> Whole:
    return np.array(numbers, np.int64)


@compiled
def weigh(tables: PairwiseTables, weights: LoadShares, rest: CostNetwork) -> None:
    """Put what choices and pairs of them cost by some weights into a graph of costs."""
    restart(rest)
    for unit in range(len(rest.size)):
        for choice in range(rest.size[unit]):
            _, cost = _cheapest(tables, weights, unit, choice)
            rest.costs[rest.at[unit] + choice] = cost
    for pair in range(len(tables.used)):
        tables.used[pair] = NONE
    for n in range(len(tables.one)):
        unit, last = tables.one[n], weights.last[n]
        if last:
            for x in range(rest.size[unit]):
                rest.costs[rest.at[unit] + x] += last * tables.prices[tables.last[n] + x]
        if weights.moved[n] or weights.waited[n]:
            _charge(tables, weights.moved[n], weights.waited[n], n, rest)


@inlined
def _charge(tables: PairwiseTables, moved: float, waited: float, n: int, rest: CostNetwork) -> None:
    """Put what a trip costs between its units."""
    one, other, pair, prices = tables.one[n], tables.other[n], tables.pair[n], tables.prices
    moved_at, then, width = tables.moved[n], tables.waited[n], rest.size[other]
    if pair < 0:
        for x in range(width):
            at = x * width + x
            rest.costs[rest.at[one] + x] += (
                moved * prices[moved_at + at] + waited * prices[then + at]
            )
        return
    fresh = tables.used[pair] < 0
    if fresh:
        tables.used[pair] = connect(rest, tables.lower[pair], tables.upper[pair])
    base = rest.base[tables.used[pair]]
    across, down = (width, 1) if one < other else (1, rest.size[one])
    for x in range(rest.size[one]):
        for y in range(width):
            at, to = x * width + y, base + x * across + y * down
            cost = moved * prices[moved_at + at] + waited * prices[then + at]
            rest.pool[to] = cost if fresh else rest.pool[to] + cost


@inlined
def _cheapest(
    tables: PairwiseTables, weights: LoadShares, unit: int, choice: int
) -> tuple[int, float]:
    """The seat of a choice that costs the least by itself, and what it costs."""
    forward, backward, at = (
        tables.forward[unit],
        tables.backward[unit],
        tables.choices[unit] + choice,
    )
    by_pass = (
        weights.chain[forward] if forward >= 0 else 0.0,
        weights.load[forward] if forward >= 0 else 0.0,
        weights.chain[backward] if backward >= 0 else 0.0,
        weights.load[backward] if backward >= 0 else 0.0,
    )
    best, least = NONE, np.inf
    for seat in range(tables.first[at], tables.first[at + 1]):
        place, cost = tables.seats[unit] + PASSES * seat, 0.0
        for n in range(PASSES):
            cost += by_pass[n] * tables.times[place + n]
        if cost < least:
            best, least = seat, cost
    return best, least


@compiled
def seat(tables: PairwiseTables, weights: LoadShares, chosen: Whole) -> None:
    """Turn the choice of every unit into a seat."""
    for unit in range(len(chosen)):
        chosen[unit], _ = _cheapest(tables, weights, unit, chosen[unit])


@compiled
def fill_assignment_loads(
    tables: PairwiseTables, sizes: Whole, chosen: Whole, choice: Whole, spent: InequalityLoads
) -> None:
    """What the seats of all units take."""
    for unit in range(len(chosen)):
        choice[unit] = 0
        at = tables.choices[unit] + 1
        while tables.first[at + choice[unit]] <= chosen[unit]:
            choice[unit] += 1
        place = tables.seats[unit] + PASSES * chosen[unit]
        for task, n in ((tables.forward[unit], 0), (tables.backward[unit], 2)):
            if task >= 0:
                spent.duration[task], spent.work[task] = (
                    tables.times[place + n],
                    tables.times[place + n + 1],
                )
    for n in range(len(tables.one)):
        x, y = choice[tables.one[n]], choice[tables.other[n]]
        at = x * sizes[tables.other[n]] + y
        spent.moved[n] = tables.prices[tables.moved[n] + at]
        spent.waited[n] = tables.prices[tables.waited[n] + at]
        spent.last[n] = tables.prices[tables.last[n] + x]
