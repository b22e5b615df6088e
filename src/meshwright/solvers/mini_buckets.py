"""Mini-bucket elimination (Dechter & Rish 2003): a lower bound of a sum of functions. Enters:
functions of the choices of some variables. Leaves: for every choice of the first variables what the
others add at least.

Variables are eliminated from the last to the first: the functions that end with a variable are
added up and minimised over it, which leaves a function of earlier ones, a message:
    m_k(x_i, ...) = min over x_k of the sum of the functions whose last variable is k   `eliminate`
With x_0 ... x_k chosen, the functions of those alone and the messages from later variables that
depend on nothing else sum up to the least that can be had. Where a message would be larger than
MOST numbers the functions are minimised in groups, one by one: then the sum is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

MOST = 20_000_000
"""Numbers of a sum of functions."""


class CostFunction(NamedTuple):
    """A cost for all choices of some variables, in rising order."""

    scope: tuple[int, ...]
    cost: Costs
    born: int
    """The variable whose elimination left it, or as many as there are if it was given."""


class MiniBuckets(NamedTuple):
    """All functions, given and left by eliminations, by their last variable."""

    ending: tuple[tuple[CostFunction, ...], ...]
    least: float
    """A lower bound of the sum over all choices; the minimum, if `exact`."""
    exact: bool


def eliminate(
    sizes: Sequence[int], functions: Iterable[tuple[tuple[int, ...], Costs]]
) -> MiniBuckets:
    """Eliminate all variables, which have so many choices each."""
    count, least, exact = len(sizes), 0.0, True
    ending: list[list[CostFunction]] = [[] for _ in sizes]
    for scope, cost in functions:
        ending[scope[-1]].append(CostFunction(scope, cost, count))
    for variable in reversed(range(count)):
        groups = _groups(ending[variable], sizes)
        exact = exact and len(groups) <= 1
        for group in groups:
            scope, cost = _sum(group, sizes)
            left = cost.min(axis=-1)
            if len(scope) == 1:
                least += float(left)
            else:
                ending[scope[-2]].append(CostFunction(scope[:-1], left, variable))
    return MiniBuckets(tuple(map(tuple, ending)), least, exact)


def choice(buckets: MiniBuckets) -> tuple[int, ...]:
    """A choice with the least sum, if the buckets are exact; else a good one."""
    chosen: list[int] = []
    for ending in buckets.ending:
        total: Costs | float = 0.0
        for function in ending:
            total = total + function.cost[tuple(chosen[i] for i in function.scope[:-1])]
        chosen.append(int(np.argmin(total)))
    return tuple(chosen)


def _groups(functions: Sequence[CostFunction], sizes: Sequence[int]) -> list[list[CostFunction]]:
    """Functions to be added up before they are minimised, the widest first."""
    groups: list[tuple[set[int], list[CostFunction]]] = []
    for function in sorted(functions, key=lambda candidate: -candidate.cost.size):
        for scope, group in groups:
            wider = scope | set(function.scope)
            if prod(sizes[i] for i in wider) <= MOST:
                scope |= wider
                group.append(function)
                break
        else:
            groups.append((set(function.scope), [function]))
    return [group for _, group in groups]


def _sum(group: Sequence[CostFunction], sizes: Sequence[int]) -> tuple[tuple[int, ...], Costs]:
    scope = tuple(sorted(set().union(*(term.scope for term in group))))
    total = np.zeros([sizes[i] for i in scope])
    for function in group:
        shape = [sizes[i] if i in function.scope else 1 for i in scope]
        total += function.cost.reshape(shape)
    return scope, total
