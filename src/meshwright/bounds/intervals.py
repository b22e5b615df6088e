"""Synchronisation points of a step, and the intervals between them: the compute tasks that every
plan has, in phases. Enters: units and bundles. Leaves: `SyncIntervals`.

Whatever the plan, a unit's forward task comes after those of the units it reads, its backward task
after its forward task and after the backward tasks of its readers. A *waist* is a task that comes
before or after every other one. Waists cut a step into phases: all of one phase has ended before
anything of the next begins, so that a step takes at least the sum over the phases of
    the longest chain of durations in the phase, with what must move between its tasks, and of
    the sum over the phase of share x duration: what the devices do, on average.
What moves from a waist to the next phase, or out of a phase to the waist behind it, takes its time
in that phase. The end of the step is a waist as well: it waits for the sums of gradients.
Units through which no gradient flows are left out, unless there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.sharding.unit import OpGroup

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]


class LongestChains(NamedTuple):
    """The longest chain of each phase."""

    length: Floats
    """[phases]"""
    task: Flags
    """[tasks] whether a task is in it."""
    edge: Flags
    """[edges]"""


class IntervalEdges(NamedTuple):
    """What lies between the tasks of each edge."""

    trip: Whole
    """[edges] its number, -1 if nothing moves."""
    last: Flags
    """[edges] whether it leads to the end of the step."""


class SyncIntervals(NamedTuple):
    """Tasks: units forward, then the same units backward, both in an order of running; and the end
    of the step, which takes no time.
    """

    unit: Whole
    """[tasks] -1 for the end."""
    backward: Flags
    """[tasks]"""
    number: Whole
    """[tasks] the phase."""
    source: Whole
    """[edges] tasks, sorted by where they lead: a task waits for another, and what lies between."""
    target: Whole
    """[edges]"""
    leaves: Flags
    """[edges] whether it leads out of its phase."""
    total: int
    """How many phases there are."""

    def longest(self, duration: Floats, between: Floats) -> LongestChains:
        """The longest chains of durations of tasks and of what lies between them."""
        tasks = len(duration)
        end, link = np.zeros(tasks), np.full(tasks, -1, np.int64)
        last, out = np.full(self.total, -1, np.int64), np.full(self.total, -1, np.int64)
        length = np.zeros(self.total)
        _chain(self, duration, between, end, link, last, out, length)
        in_task, in_edge = np.zeros(tasks, np.bool_), np.zeros(len(between), np.bool_)
        _marked(self, link, last, out, in_task, in_edge)
        return LongestChains(length, in_task, in_edge)


@compiled
def _chain(
    intervals: SyncIntervals,
    duration: Floats,
    between: Floats,
    end: Floats,
    link: Whole,
    last: Whole,
    out: Whole,
    length: Floats,
) -> None:
    """When tasks end, counted from the start of their phases, and by which edges."""
    edge = 0
    for task in range(len(duration)):
        phase = intervals.number[task]
        while edge < len(intervals.target) and intervals.target[edge] == task:
            before = intervals.source[edge]
            if intervals.leaves[edge]:
                at = intervals.number[before]
                if end[before] + between[edge] > length[at]:
                    length[at], last[at], out[at] = end[before] + between[edge], before, edge
            else:
                start = between[edge]
                if intervals.number[before] == phase:
                    start += end[before]
                if start > end[task]:
                    end[task], link[task] = start, edge
            edge += 1
        end[task] += duration[task]
        if end[task] > length[phase]:
            length[phase], last[phase], out[phase] = end[task], task, -1


@compiled
def _marked(
    intervals: SyncIntervals, link: Whole, last: Whole, out: Whole, in_task: Flags, in_edge: Flags
) -> None:
    """Mark the tasks and edges of the longest chain of each phase, from its end on."""
    for phase in range(intervals.total):
        task = last[phase]
        if out[phase] >= 0:
            in_edge[out[phase]] = True
        while task >= 0:
            in_task[task] = True
            edge = link[task]
            task = -1
            if edge >= 0:
                in_edge[edge] = True
                before = intervals.source[edge]
                if intervals.number[before] == phase:
                    task = before


def phases(
    units: Sequence[OpGroup],
    reads: Iterable[tuple[int, int, int, bool]],
    sums: Iterable[tuple[int, int]],
    sequential: bool,
) -> tuple[SyncIntervals, IntervalEdges]:
    """The phases of a graph, only one if micro-batches overlap, that is if not `sequential`.

    Enter: for every trip its number, the units that it leads from and to, whether it goes back; and
    for every gradient of a parameter the number of its trip and the unit that makes it.
    """
    flowing = [n for n, unit in enumerate(units) if unit.flows]
    unit_numbers = flowing or list(range(len(units)))
    n, total = len(unit_numbers), 2 * len(unit_numbers) if flowing else len(unit_numbers)
    place = {unit: at for at, unit in enumerate(unit_numbers)}
    edges = [(at, 2 * n - 1 - at, -1, 0) for at in range(n if flowing else 0)]
    for trip, one, other, backward in reads:
        if one in place and other in place and (flowing or not backward):
            a, b = place[one], place[other]
            edges.append((2 * n - 1 - a, 2 * n - 1 - b, trip, 0) if backward else (a, b, trip, 0))
    edges.sort(key=lambda edge: edge[1])
    edges += [(task, total, -1, 1) for task in range(total)]
    edges += [(2 * n - 1 - place[unit], total, trip, 1) for trip, unit in sums if unit in place]
    before: list[list[int]] = [[] for _ in range(total + 1)]
    for a, b, _, _ in edges:
        before[b].append(a)
    number = np.array(_numbered(before) if sequential else [0] * (total + 1), np.int64)
    source, target, trips, last = np.array(edges, np.int64).reshape(-1, 4).T.copy()
    alone = np.bincount(number, minlength=1) == 1
    step = number[target] - number[source]
    after_waist = alone[number[source]] & (step == 1)
    kept = (step == 0) | (step == 1)
    order = SyncIntervals(
        unit=np.array([*unit_numbers, *(reversed(unit_numbers) if flowing else ()), -1], np.int64),
        backward=np.arange(total + 1) >= n,
        number=number,
        source=source[kept],
        target=target[kept],
        leaves=((step == 1) & ~after_waist)[kept],
        total=int(number.max(initial=-1)) + 1,
    )
    return order, IntervalEdges(trips[kept], last[kept] > 0)


def _numbered(before: list[list[int]]) -> list[int]:
    """The phase of every task; a waist is one by itself."""
    total = len(before)
    above, below = [0] * total, [0] * total
    for at, sources in enumerate(before):
        for earlier in sources:
            above[at] |= above[earlier] | 1 << earlier
    for at in reversed(range(total)):
        for earlier in before[at]:
            below[earlier] |= below[at] | 1 << at
    waists = [
        at for at in range(total) if above[at].bit_count() + below[at].bit_count() == total - 1
    ]
    number, marks = [0] * total, sum(1 << at for at in waists)
    for at in range(total):
        number[at] = 2 * (above[at] & marks).bit_count() + (1 if marks >> at & 1 else 0)
    # Numbers of phases that have no task are left out.
    renamed = {old: new for new, old in enumerate(sorted(set(number)))}
    return [renamed[old] for old in number]
