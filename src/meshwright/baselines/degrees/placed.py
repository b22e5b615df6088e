"""Axis placement: parallelism axes (DP, TP, ...) mapped to cluster levels in rank order. Enters:
degrees in an order, a cluster. Leaves: for each axis the factors it takes, and its row of the
parallelism matrix.

Ranks are numbered along the innermost axis first and devices along the innermost level first, so
an axis takes what is left of the innermost level, then of the next. With r what is left of a
degree and c what is left of a level:

    r divides c: the axis ends in this level      c divides r: it takes all that is left of it

and otherwise some of its groups would lie inside an instance of the level and some across two: no
matrix says that. Devices of a level are alike, so which of its prime factors an axis takes does
not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.base.integers import prime_factors
from meshwright.baselines.degrees.parallel_config import Axis
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.layout import factors

Rows = dict[Axis, tuple[int, ...]]
"""The parallelism matrix: for each axis how many ways it goes on each level."""


def rows_of(degrees: Mapping[Axis, int], cluster: Cluster) -> Rows:
    """The parallelism matrix of axes, given innermost first, that fill a cluster.

    >>> rows_of({"tensor": 4, "data": 4}, Cluster.named("dgx-h100", node=2))
    {'tensor': (1, 4), 'data': (2, 2)}
    """
    left = list(cluster.hierarchy)
    rows: Rows = {}
    for axis, degree in degrees.items():
        row, rest = [1] * len(left), degree
        for level in reversed(range(len(left))):
            taken = math.gcd(rest, left[level])
            if taken not in (rest, left[level]):
                raise _straddling(axis, degree, cluster)
            row[level], rest, left[level] = taken, rest // taken, left[level] // taken
        if rest > 1:
            raise _straddling(axis, degree, cluster)
        rows[axis] = tuple(row)
    return rows


def mesh_factors_of_axes(rows: Rows, cluster: Cluster) -> dict[Axis, tuple[int, ...]]:
    """The factors, by number, that each axis takes: of a level the outermost for the last axis.

    >>> rows = rows_of({"tensor": 4, "data": 4}, Cluster.named("dgx-h100", node=2))
    >>> mesh_factors_of_axes(rows, Cluster.named("dgx-h100", node=2))
    {'tensor': (2, 3), 'data': (0, 1)}
    """
    free = dict(enumerate(factors(cluster)))
    taken: dict[Axis, list[int]] = {axis: [] for axis in rows}
    for axis in reversed(rows):
        for level, ways in enumerate(rows[axis]):
            for prime in prime_factors(ways):
                number = next(n for n, factor in free.items() if factor == (level, prime))
                del free[number]
                taken[axis].append(number)
    return {axis: tuple(sorted(numbers)) for axis, numbers in taken.items()}


def _straddling(axis: Axis, degree: int, cluster: Cluster) -> InputError:
    shape = " x ".join(f"{level.cardinality} {level.name}" for level in cluster.levels)
    return InputError(
        f"{axis} {degree} does not lie evenly on {shape}: some of its groups would be inside a "
        f"{cluster.levels[-1 if len(cluster.levels) == 1 else -2].name}, and some across two",
        "give degrees of which each fills a level before the next one begins",
    )
