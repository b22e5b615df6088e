"""Graph partitioning into segments for rewriting, by a shortest path over cut positions. Enters: a
graph, the places where rules fit it. Leaves: the positions of the cuts.

A cut at p stands before operator p. Of the tensors that need a gradient, tensor t is made at m(t)
and read at some positions r. For a segment [a, b), others that pass over it unread do not count:
    entering(a, b) = |{t : m(t) < a, a <= r < b for some r}| <= entries   iff b <= reach(a)
                                                                                `_reaches`
    leaving(a, b)  = |{t : a <= m(t) < b, b <= r for some r}| <= 1        iff a >= back(b)
                                                                                `_backs`
The number of variants of a segment grows with its length, and a match that a cut crosses is lost.
With k the least length of a segment and crossed(p) the matches with operators on both sides of p,
    minimise  sum of (b - a)^2 over segments + k^2 * sum of crossed(p) over cuts,
    subject to  b - a >= k,  entering(a, b) <= entries,  leaving(a, b) <= 1         `cuts`
is a shortest path. The whole graph as one segment is always allowed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from meshwright.graph.counts import tensors_requiring_grad
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.places import Match


class _Way(NamedTuple):
    """The best segments up to a stop: what they cost, and where the last one starts."""

    price: int
    start: int


class _Life(NamedTuple):
    """Where a tensor is made and read; never without a reader."""

    made: int
    reads: tuple[int, ...]


def cuts(
    graph: OperatorGraph, matches: Iterable[Match], least: int, entries: int
) -> tuple[int, ...]:
    """The positions of the cuts, from 0 to the number of operators.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter w: float32[k=8, l=8]
    ... operator a: a: float32[n=4, k=8] = linear(x, w)
    ... operator b: b: float32[n=4, k=8] = relu(a)
    ... operator c: c: float32[n=4, k=8] = linear(b, w)
    ... operator d: d: float32[n=4, k=8] = relu(c)
    ... output d''')
    >>> cuts(graph, (), 2, 1)
    (0, 2, 4)
    """
    count = len(graph.operators)
    lives = _lives(graph)
    reaches, backs = _reaches(lives, count, entries), _backs(lives, count)
    crossed = _crossed(graph, matches)
    best: list[_Way | None] = [_Way(0, 0), *[None] * count]
    for stop in range(1, count + 1):
        latest = stop - least if count > least else 0
        for start in range(latest, backs[stop] - 1, -1):
            known, before = best[stop], best[start]
            if known is not None and (stop - start) ** 2 > known.price:
                break
            if before is not None and stop <= reaches[start]:
                price = before.price + (stop - start) ** 2 + least**2 * crossed[stop]
                way = _Way(price, start)
                best[stop] = way if known is None else min(known, way)
    return _way_back(best)


def _way_back(best: Sequence[_Way | None]) -> tuple[int, ...]:
    positions = [len(best) - 1]
    while positions[-1] > 0:
        step = best[positions[-1]]
        assert step is not None, "the whole graph is a segment"
        positions.append(step.start)
    return tuple(reversed(positions))


def _lives(graph: OperatorGraph) -> list[_Life]:
    """Of the tensors that operators make, that need a gradient and that are read."""
    needing = tensors_requiring_grad(graph)
    reads: dict[str, list[int]] = {}
    for position, operator in enumerate(graph.operators):
        for name in dict.fromkeys(filter(None, operator.inputs)):
            reads.setdefault(name, []).append(position)
    return [
        _Life(position, tuple(reads[tensor.name]))
        for position, operator in enumerate(graph.operators)
        for tensor in operator.outputs
        if tensor.name in needing and tensor.name in reads
    ]


def _alive(lives: Iterable[_Life], count: int) -> list[list[_Life]]:
    """For each cut the tensors that are made before it and read after it."""
    alive: list[list[_Life]] = [[] for _ in range(count + 1)]
    for life in lives:
        for cut in range(life.made + 1, life.reads[-1] + 1):
            alive[cut].append(life)
    return alive


def _reaches(lives: Iterable[_Life], count: int, entries: int) -> list[int]:
    """For each start of a segment the furthest stop."""
    reaches = []
    for start, alive in enumerate(_alive(lives, count)):
        reads = sorted(life.reads[bisect.bisect_left(life.reads, start)] for life in alive)
        reaches.append(reads[entries] if len(reads) > entries else count)
    return reaches


def _backs(lives: Iterable[_Life], count: int) -> list[int]:
    """For each stop of a segment the earliest start."""
    return [
        sorted(life.made for life in alive)[-2] + 1 if len(alive) > 1 else 0
        for alive in _alive(lives, count)
    ]


def _crossed(graph: OperatorGraph, matches: Iterable[Match]) -> list[int]:
    """For each cut how many matches have operators on both sides; none at the ends."""
    position = {operator.name: n for n, operator in enumerate(graph.operators)}
    change = [0] * (len(graph.operators) + 2)
    for match in matches:
        places = [position[name] for name in match.operators]
        change[min(places) + 1] += 1
        change[max(places) + 1] -= 1
    return list(accumulate(change))[:-1]
