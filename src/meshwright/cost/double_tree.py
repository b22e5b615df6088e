"""NCCL's double binary tree (Sanders, Speck & Träff 2009) over machines. Enters: how many machines
a group has at each level that joins them. Leaves: its edges, and what crosses each level.

Machines are numbered 0 ... n-1, outermost level first. Both trees carry half of the data, each edge
a half of the whole up and a half down, in units of one full transfer. The trees go over all
machines in their order; NCCL does not look at what joins them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple


class TreeCrossing(NamedTuple):
    """What crosses one level."""

    out: float
    """The most that leaves one instance by transfers of this level."""
    among: tuple[float, ...]
    """All transfers of this level in the whole, and inside the busiest instance of each above."""
    leaving: float
    """The most that leaves one instance by transfers of this level and of all above."""
    hops: int
    """Its transfers between a root and the machine that is farthest, by outer levels first."""


@lru_cache(maxsize=1024)
def crossings(sizes: tuple[int, ...]) -> tuple[TreeCrossing, ...]:
    """What crosses each level, outermost first.

    >>> crossings((2, 4))
    (TreeCrossing(out=2.0, among=(4.0,), leaving=2.0, hops=2), \
TreeCrossing(out=2.0, among=(10.0, 5.0), leaving=2.0, hops=1))
    """
    held = [math.prod(sizes[u + 1 :]) for u in range(len(sizes))]
    every = tree_edges(math.prod(sizes))
    trees = every[: len(every) // 2], every[len(every) // 2 :]
    ways = max(_farthest(held, tree) for tree in trees)
    per_level = []
    for u, below in enumerate(held):
        edges = [(a, b) for a, b in every if _level_between(held, a, b) == u]
        beyond = [(a, b) for a, b in every if a // below != b // below]
        among = tuple(_most_in_one(edges, size) for size in (math.prod(sizes), *held[:u]))
        out, leaving = _most_at_one(edges, below), _most_at_one(beyond, below)
        per_level.append(TreeCrossing(out, among, leaving, ways[u]))
    return tuple(per_level)


@lru_cache(maxsize=1024)
def tree_edges(size: int) -> tuple[tuple[int, int], ...]:
    """(child, parent) of both trees of NCCL's double binary tree; each carries half of the data.

    >>> tree_edges(4)
    ((1, 2), (2, 0), (3, 2), (2, 1), (1, 3), (0, 1))
    """

    def parent(rank: int) -> int:
        low = rank & -rank
        up = (rank ^ low) | (low << 1)
        return up if up < size else rank ^ low

    plain = tuple((rank, parent(rank)) for rank in range(1, size))
    if size % 2:
        return plain + tuple(((a + 1) % size, (b + 1) % size) for a, b in plain)
    return plain + tuple((size - 1 - a, size - 1 - b) for a, b in plain)


def tree_depth(size: int) -> int:
    """How many edges lie between the root of a binary tree and its farthest member.

    >>> [tree_depth(size) for size in (1, 2, 3, 4, 5, 8, 9)]
    [0, 1, 2, 2, 3, 3, 4]
    """
    return (size - 1).bit_length()


def _most_at_one(edges: Sequence[tuple[int, int]], size: int) -> float:
    """What leaves the run of `size` machines at which most of some edges between such runs end;
    each edge carries a half up and a half down.
    """
    return max(Counter(end // size for edge in edges for end in edge).values(), default=0) / 2


def _most_in_one(edges: Sequence[tuple[int, int]], size: int) -> float:
    """How many of the transfers over some edges lie in the run of `size` machines with the most."""
    return float(max(Counter(a // size for a, _ in edges).values(), default=0))


def _level_between(held: Sequence[int], a: int, b: int) -> int:
    """The outermost level at which two machines differ."""
    return next(u for u, below in enumerate(held) if a // below != b // below)


def _farthest(held: Sequence[int], tree: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The transfers of each level between the root and its farthest member."""
    parents, farthest = dict(tree), (0,) * len(held)
    for member in parents:
        passed = Counter[int]()
        while member in parents:
            passed[_level_between(held, member, parents[member])] += 1
            member = parents[member]
        farthest = max(farthest, tuple(passed[u] for u in range(len(held))))
    return farthest
