"""Uneven shares of a batch (integer min-max load balancing). Enters: for each island the time of a
share. Leaves: shares that add up to the batch, whose slowest island is the fastest possible.

    minimise max over i of t_i(b_i)   subject to   sum of b_i = B,  b_i in the candidates of i

by dynamic programming over islands: best(i, b) = min over c of max(best(i - 1, b - c), t_i(c)).
Where candidates are all whole numbers from 1 to B that is the optimum; else a window of them around
shares in proportion to speed, which grows while the optimum lies at its edge (`balanced_shares`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

WINDOW = 3
"""Candidates at each side of the share in proportion to speed."""

GRID = 64
"""About how many candidates a batch has."""

ROUNDS = 6
"""How often a window grows at most."""

Timing = Callable[[int, int], float]
"""Seconds of an island, by number, with so many samples; infinite if it cannot."""


def min_max_shares(
    tables: Sequence[Mapping[int, float]], batch: int
) -> tuple[float, tuple[int, ...]]:
    """The best shares among candidates; infinite and empty if none add up.

    >>> min_max_shares([{1: 1.0, 2: 2.0, 3: 3.0}, {1: 3.0, 2: 6.0, 3: 9.0}], 4)
    (3.0, (3, 1))
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for table in tables:
        after: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (slowest, chosen) in best.items():
            for share, seconds in table.items():
                total = used + share
                if total > batch:
                    continue
                tried = (max(slowest, seconds), (*chosen, share))
                if total not in after or tried < after[total]:
                    after[total] = tried
        best = after
    return best.get(batch, (math.inf, ()))


def proportional_shares(speeds: Sequence[float], batch: int, unit: int = 1) -> tuple[int, ...]:
    """Whole shares in proportion to speeds, in multiples of a unit but for the fastest; at least a
    unit each.

    >>> proportional_shares([3.0, 1.0], 10)
    (8, 2)
    """
    total = sum(speeds)
    shares = [max(unit, round(batch * speed / total / unit) * unit) for speed in speeds]
    first = max(range(len(speeds)), key=lambda number: speeds[number])
    shares[first] += batch - sum(shares)
    return tuple(shares)


def unit_of(batch: int) -> int:
    """The step between candidates, of which a batch has about GRID: a divisor of it if near."""
    wanted = max(1, batch // GRID)
    near = [n for n in range(wanted, 2 * wanted + 1) if batch % n == 0]
    return near[0] if near else wanted


def balanced_shares(
    timing: Timing, speeds: Sequence[float], batch: int, enough: Callable[[], bool]
) -> tuple[float, tuple[int, ...]]:
    """Shares whose slowest island is the fastest that was found.

    All candidates are tried where they are few, so that a small question is answered exactly.
    """
    islands, unit = range(len(speeds)), unit_of(batch)
    if len(speeds) > batch:
        return math.inf, ()
    few = batch <= 2 * WINDOW + 2
    centre = proportional_shares(speeds, batch, unit)
    tables: list[dict[int, float]] = [{} for _ in islands]
    reach = [WINDOW] * len(speeds)
    for _ in range(ROUNDS):
        for number in islands:
            # The middle first: it is what there is if time runs out.
            steps = sorted(range(-reach[number], reach[number] + 1), key=abs)
            near = (centre[number] + unit * step for step in steps)
            for share in range(1, batch) if few else near:
                fresh = 0 < share < batch and share not in tables[number]
                if fresh and not (tables[number] and enough()):
                    tables[number][share] = timing(number, share)
        best, shares = min_max_shares(tables, batch)
        if few or not shares or enough():
            break
        edges = [n for n in islands if shares[n] in (min(tables[n]), max(tables[n]))]
        if not edges:
            break
        for number in edges:
            reach[number] *= 2
    return best, shares
