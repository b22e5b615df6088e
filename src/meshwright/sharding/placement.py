"""Parallelism matrices (P², section 3.1). Enters: a cluster and axes. Leaves: every placement,
lazily, in order.

For a hierarchy h_0 ... h_n and axes p_0 ... p_m a placement is an integer matrix x with
    ∏_i x[i][j] = h_j  for every level j   and   ∏_j x[i][j] = p_i  for every axis i.
Inside level j a position is the mixed-radix number of the digits d[i][j] with axis 0 the most
significant; the index along axis i is that of d[i][0], d[i][1], ... with level 0 the most
significant (P² figure 2). Nothing here knows what is reduced or what it costs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.integers import factorizations, from_digits, parse_whole, to_digits
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.axes import IDLE, Axis, checked_axes, fitted

Matrix = tuple[tuple[int, ...], ...]


@printed
class Placement(msgspec.Struct, frozen=True):
    """Axes (rows) on levels (columns), as the matrix of how many ways each level splits each axis.

    >>> fig_2d = Placement((Axis("data", 4), Axis("shard", 4)), ((1, 1, 2, 2), (1, 2, 1, 2)))
    >>> fig_2d.shard(9), fig_2d.device((0, 3))
    ((0, 3), 9)
    """

    axes: tuple[Axis, ...]
    matrix: Matrix

    def __post_init__(self) -> None:
        if len({len(row) for row in self.matrix}) != 1 or len(self.axes) != len(self.matrix):
            raise InputError(
                f"the matrix {format_matrix(self.matrix)} does not have a row of equal length for "
                f"each of the axes {', '.join(map(str, self.axes))}",
                "give one row an axis and one column a level",
            )
        for axis, row in zip(self.axes, self.matrix, strict=True):
            if any(type(ways) is not int or ways < 1 for ways in row):
                raise InputError(
                    f"row {shown(list(row))} of axis {axis} holds what cannot split it",
                    "give whole numbers from 1",
                )
            if math.prod(row) != axis.size:
                raise InputError(
                    f"row {shown(list(row))} of axis {axis} multiplies to {shown(math.prod(row))}",
                    f"make it multiply to {axis.size}",
                )

    def __str__(self) -> str:
        return format_matrix(self.matrix)

    def sheet(self) -> Sheet:
        """The matrix, a row for each axis and a column for each level."""
        levels = tuple(f"level {number}" for number in range(1, len(self.matrix[0]) + 1))
        rows = zip(self.axes, self.matrix, strict=True)
        return Sheet(
            f"placement on {' x '.join(map(str, self.hierarchy))} devices",
            (),
            ("axis", *levels),
            tuple((str(axis), *map(str, row)) for axis, row in rows),
        )

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """The cardinalities of the levels: the products of the columns."""
        return tuple(math.prod(column) for column in zip(*self.matrix, strict=True))

    @property
    def devices(self) -> int:
        """How many devices the matrix covers, idle ones included."""
        return math.prod(self.hierarchy)

    def works(self, shard: Sequence[int]) -> bool:
        """Whether the device of a shard has work: only the first index of an idle axis does."""
        return all(i == 0 for axis, i in zip(self.axes, shard, strict=True) if axis.name == IDLE)

    def on(self, cluster: Cluster) -> Placement:
        """The same placement, once it is known to fit the cluster."""
        if self.hierarchy != cluster.hierarchy:
            raise InputError(
                f"the columns of {self} multiply to {list(self.hierarchy)}",
                f"make them multiply to {list(cluster.hierarchy)}, as on cluster {cluster.name!r}",
            )
        return self

    def shard(self, device: int) -> tuple[int, ...]:
        """The index along each axis of what lies on a device."""
        columns = tuple(zip(*self.matrix, strict=True))
        positions = to_digits(device, self.hierarchy)
        digits = [to_digits(p, column) for p, column in zip(positions, columns, strict=True)]
        return tuple(
            from_digits(axis_digits, row)
            for axis_digits, row in zip(zip(*digits, strict=True), self.matrix, strict=True)
        )

    def device(self, shard: Sequence[int]) -> int:
        """The device on which a shard lies; the inverse of `shard`."""
        digits = [to_digits(index, row) for index, row in zip(shard, self.matrix, strict=True)]
        columns = zip(*self.matrix, strict=True)
        positions = [
            from_digits(level_digits, column)
            for level_digits, column in zip(zip(*digits, strict=True), columns, strict=True)
        ]
        return from_digits(positions, self.hierarchy)


def format_matrix(matrix: Matrix) -> str:
    """The matrix as the paper prints it.

    >>> format_matrix(((1, 2), (4, 8)))
    '[[1 2] [4 8]]'
    """
    return "[" + " ".join("[" + " ".join(map(str, row)) + "]" for row in matrix) + "]"


def parse_matrix(text: str) -> Matrix:
    """A matrix from the paper's or JSON's notation.

    >>> parse_matrix("[[1 2] [4 8]]") == parse_matrix("[[1, 2], [4, 8]]") == ((1, 2), (4, 8))
    True
    """
    body = text.strip()
    if not re.fullmatch(r"\[\s*(\[[\d\s,]+\][\s,]*)+\]", body):
        raise InputError(
            f"{shown(text)} is not a matrix", "write rows in brackets, as '[[1 2] [4 8]]'"
        )
    rows = re.findall(r"\[([\d\s,]+)\]", body)
    return tuple(tuple(map(parse_whole, re.findall(r"\d+", row))) for row in rows)


def placements(
    cluster: Cluster,
    axes: Mapping[str, int] | Sequence[Axis],
    *,
    idle: bool = False,
    alike: Sequence[Sequence[str]] = (),
) -> Iterator[Placement]:
    """All placements of the axes on the cluster, in lexicographic order of their columns.

    With `idle` the axes may fill a part of the machine only. `alike` lists sets of axes that may
    be exchanged without changing anything; of the placements that differ by such an exchange
    only the first is given (see `interchangeable`).

    >>> from meshwright import Cluster, placements
    >>> for placement in placements(Cluster.named("gcp-a100", node=4), {"data": 4, "tensor": 16}):
    ...     print(placement)
    [[1 4] [4 4]]
    [[2 2] [2 8]]
    [[4 1] [1 16]]
    """
    filled = fitted(checked_axes(axes), cluster, idle)
    rows = {axis.name: row for row, axis in enumerate(filled)}
    for name in (name for names in alike for name in names):
        if name not in rows:
            raise InputError(f"there is no axis {name!r} to be alike", nearest(name, rows))
    orders = [tuple(sorted(rows[name] for name in names)) for names in alike]
    return (
        Placement(filled, matrix)
        for matrix in matrices(cluster.hierarchy, [axis.size for axis in filled])
        if all(matrix[a] <= matrix[b] for order in orders for a, b in pairwise(order))
    )


def matrices(hierarchy: Sequence[int], sizes: Sequence[int]) -> Iterator[Matrix]:
    """All integer matrices with the hierarchy as column products and the sizes as row products.

    Choosing the columns one after the other never runs into a dead end: for each prime, any
    exponents that keep the remaining row and column sums equal can be completed.
    """

    def columns(
        levels: Sequence[int], left: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], ...]]:
        if not levels:
            yield ()
            return
        for column in factorizations(levels[0], left):
            remaining = tuple(p // x for p, x in zip(left, column, strict=True))
            for rest in columns(levels[1:], remaining):
                yield (column, *rest)

    for chosen in columns(hierarchy, tuple(sizes)):
        yield tuple(zip(*chosen, strict=True))


def interchangeable(
    cluster: Cluster, axes: Sequence[Axis], role: Mapping[str, object]
) -> list[list[str]]:
    """Sets of axes of equal size and equal role that may be exchanged without changing any price.

    On a machine whose innermost level is wired (blocks, rings) the order of positions matters,
    so there only neighbouring axes count as alike.

    >>> interchangeable(Cluster.named("gcp-a100"), (Axis("a", 2), Axis("b", 16), Axis("c", 2)), {})
    [['a', 'c']]
    """
    classes: list[list[Axis]] = []
    for position, axis in enumerate(axes):
        for members in classes:
            first, last = members[0], members[-1]
            same = first.size == axis.size and role.get(first.name) == role.get(axis.name)
            if same and (not cluster.wired or axes[position - 1] == last):
                members.append(axis)
                break
        else:
            classes.append([axis])
    return [[axis.name for axis in members] for members in classes if len(members) > 1]
