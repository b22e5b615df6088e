"""The compute tasks that every plan has, in phases. Enters: units and bundles. Leaves: `Phases`.

Whatever the plan, a unit's forward task comes after those of the units it reads, its backward task
after its forward task and after the backward tasks of its readers. A *waist* is a task that comes
before or after every other one. Waists cut a step into phases: all of one phase has ended before
anything of the next begins, so that a step takes at least the sum over the phases of
    the longest chain of durations in the phase, and of
    the sum over the phase of share x duration: what the devices do, on average.
Units through which no gradient flows are left out, unless there are no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.parallelize.units import Unit
from meshwright.simulate.bundles import Bundle

Floats = NDArray[np.float64]


class Phases(NamedTuple):
    """Tasks: units forward, then the same units backward, both in an order of running."""

    unit: tuple[int, ...]
    """[tasks]"""
    back: tuple[bool, ...]
    """[tasks]"""
    before: tuple[tuple[int, ...], ...]
    """[tasks] those of the same phase that it waits for."""
    phase: tuple[int, ...]
    """[tasks]"""
    first_back: int
    """The first phase with a backward task; the number of phases without any."""
    count: int

    def longest(self, duration: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """For each phase the length of its longest chain, and for each task whether it is in it."""
        end = [0.0] * len(duration)
        link = [-1] * len(duration)
        last = [-1] * self.count
        for task, before in enumerate(self.before):
            for earlier in before:
                if end[earlier] > end[task]:
                    end[task], link[task] = end[earlier], earlier
            end[task] += duration[task]
            best = last[self.phase[task]]
            if best < 0 or end[task] > end[best]:
                last[self.phase[task]] = task
        inside = np.zeros(len(duration), np.bool_)
        for task in last:
            while task >= 0:
                inside[task] = True
                task = link[task]
        return np.array([end[task] if task >= 0 else 0.0 for task in last]), inside


def phases(units: Sequence[Unit], bundles: Sequence[Bundle], sequential: bool) -> Phases:
    """The phases of a graph; only one if micro-batches overlap, that is if not `sequential`."""
    flowing = [n for n, unit in enumerate(units) if unit.flows]
    own = flowing or list(range(len(units)))
    place = {unit: at for at, unit in enumerate(own)}
    reads = sorted(
        {
            (place[bundle.maker], place[leg.unit])
            for bundle in bundles
            if not bundle.parameters
            for leg in bundle.legs
            if bundle.maker in place and leg.unit in place
        }
    )
    n = len(own)
    total = 2 * n if flowing else n
    before: list[list[int]] = [[] for _ in range(total)]
    for maker, reader in reads:
        before[reader].append(maker)
        if flowing:
            before[2 * n - 1 - maker].append(2 * n - 1 - reader)
    for at in range(n if flowing else 0):
        before[2 * n - 1 - at].append(at)
    number = _numbered(before) if sequential else [0] * total
    return Phases(
        unit=tuple(own[at] if at < n else own[2 * n - 1 - at] for at in range(total)),
        back=tuple(at >= n for at in range(total)),
        before=tuple(
            tuple(b for b in found if number[b] == number[at]) for at, found in enumerate(before)
        ),
        phase=tuple(number),
        first_back=min(number[n:], default=max(number, default=-1) + 1),
        count=max(number, default=-1) + 1,
    )


def _numbered(before: list[list[int]]) -> list[int]:
    """The phase of every task; a waist is one by itself."""
    total = len(before)
    above, below = [0] * total, [0] * total
    for at, found in enumerate(before):
        for earlier in found:
            above[at] |= above[earlier] | 1 << earlier
    for at in reversed(range(total)):
        for earlier in before[at]:
            below[earlier] |= below[at] | 1 << at
    waists = [
        at for at in range(total) if above[at].bit_count() + below[at].bit_count() == total - 1
    ]
    number, count, marks = [0] * total, 0, sum(1 << at for at in waists)
    for at in range(total):
        number[at] = 2 * (above[at] & marks).bit_count() + (1 if marks >> at & 1 else 0)
    # Numbers of phases that have no task are left out.
    renamed = {old: new for new, old in enumerate(sorted(set(number)))}
    return [renamed[old] for old in number]
