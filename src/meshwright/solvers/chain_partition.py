"""Min-max partition of a chain into pipeline stages, by shortest paths for a bound on the pace.
Enters: nanoseconds of units, and of what would cross each cut. Leaves: the stage of each unit.

A stage [a, b) keeps its devices busy for the loads of its units, and its links for what crosses
both of its ends; with m micro-batches, one behind the other,

    pace(a, b) = max(load(a, b), crossing(a) + crossing(b))
    time       = load of all + sum of crossing over cuts + (m - 1) · max of pace over stages

For a bound on the pace the least sum over cuts is a shortest path over (stage, position), `_paths`;
bounds are tried from the least that is possible upwards (`SLACK`), and the least time is taken. Of
all positions s stages with a pace P can only end where the load before is at most s P, and the load
behind no more than the other stages can take.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled

SLACK = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
"""How much slower than possible the slowest stage may be if less crosses."""

DOUBLING = 2.0
"""By how much a bound on the pace grows while no cuts keep it."""

ROUNDING = 1e-9
"""The share by which sums of loads may be off."""

Times = NDArray[np.float64]


class Staging(NamedTuple):
    """A pipeline's stages."""

    stage: tuple[int, ...]
    """Of each unit."""
    pace: float
    """Of the slowest stage."""
    crossing: float
    """Summed over all cuts."""


def staged(
    loads: Sequence[float] | Times,
    crossing: Sequence[float] | Times,
    stages: int,
    micro_batches: int,
) -> Staging:
    """The stages of a pipeline, as many as asked for and no more than units.

    `crossing[p]` is what passes between units p - 1 and p, both ways.

    >>> staged([4, 4, 1, 3], [0, 9, 1, 2, 0], 2, 8)
    Staging(stage=(0, 0, 1, 1), pace=8.0, crossing=1.0)
    """
    count = min(stages, len(loads))
    before = np.concatenate(([0.0], np.cumsum(np.asarray(loads, np.float64))))
    passing = np.asarray(crossing, np.float64)
    least = _least_pace(before, passing, count)
    stagings = [_within(before, passing, count, least * slack) for slack in SLACK]
    return min(stagings, key=lambda staging: staging.crossing + (micro_batches - 1) * staging.pace)


def _within(before: Times, crossing: Times, count: int, pace: float) -> Staging:
    """The stages of at most some pace that the least crosses between."""
    _, starts = _paths(before, crossing, count, pace, adding=True)
    cuts = [len(before) - 1]
    for number in range(count, 0, -1):
        cuts.append(int(starts[number, cuts[-1]]))
    cuts.reverse()
    runs = list(pairwise(cuts))
    stage = tuple(number for number, (a, b) in enumerate(runs) for _ in range(a, b))
    paces = [max(before[b] - before[a], crossing[a] + crossing[b]) for a, b in runs]
    return Staging(stage, float(max(paces)), float(crossing[cuts[1:-1]].sum()))


def _least_pace(before: Times, crossing: Times, count: int) -> float:
    """The pace of the slowest stage, at best: within a bound that is doubled until there is any."""
    most = float(before[-1] / count) or 1.0
    while True:
        most *= DOUBLING
        best, _ = _paths(before, crossing, count, most, adding=False)
        if best[count, -1] < np.inf or most == np.inf:
            return float(best[count, -1])


def _paths(
    before: Times, crossing: Times, count: int, most: float, *, adding: bool
) -> tuple[Times, NDArray[np.int64]]:
    """[stages, positions] the least sum of what crosses, or else the least pace of the slowest, of
    so many stages up to a position, none of more than some pace; and where the last one starts.
    """
    best = np.full((count + 1, len(before)), np.inf)
    starts = np.zeros(best.shape, np.int64)
    best[0, 0] = 0.0
    _fill(before, crossing, most, adding, best, starts)
    return best, starts


@compiled
def _fill(
    before: Times,
    crossing: Times,
    most: float,
    adding: bool,
    best: Times,
    starts: NDArray[np.int64],
) -> None:
    count, total = len(best) - 1, before[-1]
    # Sums of loads are rounded.
    wide = most * (1 + ROUNDING)
    for s in range(1, count + 1):
        for stop in range(s, len(before)):
            if before[stop] > s * wide:
                break
            if total - before[stop] > (count - s) * wide:
                continue
            for start in range(stop - 1, s - 2, -1):
                load = before[stop] - before[start]
                if load > most or (not adding and load >= best[s, stop]):
                    break
                pace = max(load, crossing[start] + crossing[stop])
                if pace > most:
                    continue
                known = best[s - 1, start]
                cost = known + crossing[start] if adding else max(known, pace)
                if cost < best[s, stop]:
                    best[s, stop], starts[s, stop] = cost, start
