"""Uniform sampling of legal layouts, by counting (dynamic programming over mesh factors). Enters: a
space of roles and a unit. Leaves: one of its legal layouts, all being alike likely.

Where degrees are given, hardly any layout has them, so roles are not drawn by themselves. With
n(f, m) the number of ways to give roles to the factors from f on such that the given splits still
get degrees m,
    n(F, 1) = 1,   n(f, m) = sum over roles r of n(f + 1, m without what r cuts)     `_ways`
the role r of factor f is drawn with weight n(f + 1, m without what r cuts). Without given degrees
all weights are equal. Whatever cannot be cut so in the end is drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.search.mcmc.metropolis import below
from meshwright.sharding.reshard import Codes
from meshwright.simulate.assign import key_of
from meshwright.simulate.layout_space import LayoutSpace
from meshwright.simulate.problem import StepModel

TRIES = 10_000
"""Draws after which there is hardly a legal layout."""

Left = tuple[tuple[int, int], ...]
"""Splits, by number, and the degrees that they still have to get."""


def random_layout(
    problem: StepModel, room: LayoutSpace, unit: int, random: NDArray[np.uint64]
) -> NDArray[np.int8]:
    """The roles of a layout."""
    group, number = problem.units[unit], int(problem.times.type[unit])
    degrees = {s: problem.allowed.degree(group, split.name) for s, split in enumerate(group.splits)}
    start: Left = tuple((s, degree) for s, degree in degrees.items() if degree is not None)
    lists = [room.role[unit, f, :count].tolist() for f, count in enumerate(room.roles[unit])]
    ways = _ways(lists, [factor.size for factor in problem.factors])
    for _ in range(TRIES if ways(0, start) else 0):
        roles = _drawn(lists, problem, ways, start, random)
        if key_of(number, roles, problem.prices.table, problem.times.table) >= 0:
            return roles
    raise InputError(
        f"unit {group.name!r} may have hardly any of its layouts, or none",
        "take away a constraint, or give fewer micro-batches",
    )


def _drawn(
    lists: list[list[int]],
    problem: StepModel,
    ways: Callable[[int, Left], int],
    left: Left,
    random: NDArray[np.uint64],
) -> Codes:
    roles = np.zeros(len(lists), np.int8)
    for f, choices in enumerate(lists):
        after = [_after(left, role, problem.factors[f].size) for role in choices]
        weights = [0 if rest is None else ways(f + 1, rest) for rest in after]
        drawn = below(random, sum(weights) // math.gcd(*weights)) * math.gcd(*weights)
        index = next(i for i, total in enumerate(accumulate(weights)) if drawn < total)
        rest = after[index]
        assert rest is not None, "what has no way on has no weight"
        roles[f], left = choices[index], rest
    return roles


def _ways(lists: list[list[int]], sizes: list[int]) -> Callable[[int, Left], int]:
    """In how many ways the factors from one on can get roles."""

    @cache
    def ways(f: int, left: Left) -> int:
        if f == len(lists):
            return int(all(degree == 1 for _, degree in left))
        after = (_after(left, role, sizes[f]) for role in lists[f])
        return sum(ways(f + 1, rest) for rest in after if rest is not None)

    return ways


def _after(left: Left, role: int, size: int) -> Left | None:
    """What is left when a factor has got a role; None if it cuts too much."""
    if any(split == role and degree % size for split, degree in left):
        return None
    return tuple((split, degree // size if split == role else degree) for split, degree in left)
