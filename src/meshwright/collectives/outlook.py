"""Admissible heuristic for A* over reduction programs: the least cost still to pay. Enters: the
moves of a synthesis. Leaves: for every view and number of moves left, the least cost that any
program must still pay.

The device at the origin (all coordinates zero) takes part in every move. Its *view* holds
    reduced   the levels along which its data is reduced,
    open      the levels along which it is scattered,
    empty     the levels along which others gave their data away in a Reduce,
    behind    the levels along which others stayed out of a Master's move.
Both of the last must be made good by a Broadcast along that level: the devices that differ from
the origin along it alone can get data, or contributions that the origin already has, in no other
way. So every program is a walk over views, no dearer than the program; the cheapest walk is a
lower bound. There are few views and they do not depend on sizes: the graph is built once for each
number of levels, and one sweep over its edges for each move left gives all bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from meshwright.collectives.laws import CollectiveGroups, Levels
from meshwright.cost.collective import Collective


class View(NamedTuple):
    """What the origin has done, and what it owes to others."""

    reduced: Levels
    open: Levels
    empty: Levels
    behind: Levels


def follow(
    view: View, within: Callable[[Levels], Sequence[CollectiveGroups]]
) -> Iterator[tuple[Collective, CollectiveGroups, View]]:
    """What each move leads to, except those that are wrong whatever else is true.

    `within` gives the groups that vary no level but those of a mask.
    """
    reduced, opened, empty, behind = view
    owed = empty | behind
    for groups in within(reduced & ~opened) if owed else ():
        varied, first = groups
        if varied & owed and not empty & ~(varied | first):
            late = behind & ~varied | first & ~empty
            yield Collective.BROADCAST, groups, View(reduced, opened, empty & ~varied, late)
    for groups in within(opened):
        varied, first = groups
        if not empty & ~first:
            late = behind | first & ~empty
            yield Collective.ALL_GATHER, groups, View(reduced, opened & ~varied, empty, late)
    for groups in within(~reduced):
        varied, first = groups
        if not empty & ~first:
            done, late = reduced | varied, behind | first & ~empty
            yield Collective.ALL_REDUCE, groups, View(done, opened, empty, late)
            yield Collective.REDUCE_SCATTER, groups, View(done, opened | varied, empty, late)
            yield Collective.REDUCE, groups, View(done, opened, empty | varied, late)


class ProgramEdge(NamedTuple):
    """A move between views, by number."""

    move: int
    price: int
    """The number of its (move, open levels) pair in `SynthesisOutlook.priced`."""
    target: int


class SynthesisOutlook:
    """The graph of views on the way to the goal in at most `limit` moves."""

    def __init__(
        self, levels: int, moves: Sequence[tuple[Collective, CollectiveGroups]], limit: int
    ) -> None:
        self._everything, self._limit = (1 << levels) - 1, limit
        self.priced: dict[tuple[int, Levels], int] = {}
        self.edges: list[list[ProgramEdge]] = []
        numbers = {move: number for number, move in enumerate(moves)}
        every = tuple(dict.fromkeys(groups for _, groups in moves))

        @cache
        def within(mask: Levels) -> tuple[CollectiveGroups, ...]:
            return tuple(groups for groups in every if not groups.varied & ~mask)

        self._views = {View(0, 0, 0, 0): 0}
        layer = list(self._views)
        for left in reversed(range(limit)):
            reached: list[View] = []
            for view in layer:
                self.edges.append([])
                for collective, groups, target in follow(view, within):
                    if self._debts(target) <= left:
                        number = numbers.get((collective, groups))
                        if number is not None:
                            self._add(view, number, target, reached)
            layer = reached
        self.edges += [[] for _ in layer]
        flat = [edge for outgoing in self.edges for edge in outgoing]
        self._prices = np.array([edge.price for edge in flat], dtype=np.int64)
        self._targets = np.array([edge.target for edge in flat], dtype=np.int64)
        counts = np.array([len(outgoing) for outgoing in self.edges])
        self._sources = np.flatnonzero(counts)
        self._starts = (np.cumsum(counts) - counts)[self._sources]

    def _debts(self, view: View) -> int:
        """A lower bound on the moves left: one that reduces, one that gathers, one Broadcast."""
        reduced, opened, empty, behind = view
        return (reduced != self._everything) + (opened > 0) + ((empty | behind) > 0)

    def _add(self, view: View, number: int, target: View, reached: list[View]) -> None:
        if target not in self._views:
            self._views[target] = len(self._views)
            reached.append(target)
        price = self.priced.setdefault((number, view.open), len(self.priced))
        self.edges[self._views[view]].append(ProgramEdge(number, price, self._views[target]))

    def bounds(
        self, price: Callable[[int, Levels], float]
    ) -> tuple[list[float], list[list[float]]]:
        """Prices of `priced`, and `b[k][view]`: the least cost with at most k moves left."""
        prices = [price(*pair) for pair in self.priced]
        left = np.full(len(self.edges), np.inf)
        goal = self._views.get(View(self._everything, 0, 0, 0))
        if goal is not None:
            left[goal] = 0.0
        bounds = [left]
        along = np.array(prices)[self._prices]
        for _ in range(self._limit if prices else 0):
            left = left.copy()
            cheapest = np.minimum.reduceat(along + bounds[-1][self._targets], self._starts)
            left[self._sources] = np.minimum(left[self._sources], cheapest)
            bounds.append(left)
        bounds += [left] * (self._limit + 1 - len(bounds))
        return prices, [b.tolist() for b in bounds]
