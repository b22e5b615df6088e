"""Nodes taken out of a graph of costs, compiled. Enters: costs of nodes and edges, one behind the
other. Leaves: what is left of them, and the choices of nodes that were taken away.

    w_i(x)      costs of choice x of node i             `costs[at[i] + x]`
    e_ij(x, y)  of choices x and y of i < j             `pool[base[e] + x * size[j] + y]`
An edge e has two ends, 2e at its lower node and 2e + 1 at the other; the ends of a node are a list
with links in both directions, so that taking one away costs the same however many there are.
Compiled code makes no arrays: where `pool` is too small, a function says how much is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.foundation.compiled import compiled, inlined

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = -1

ALIVE, EDGES, USED, TAKEN, WAITING = range(5)
"""In `Rest.counts`: nodes that are left, edges, numbers in the pool, nodes taken away, nodes that
may have to be looked at."""


class Rest(NamedTuple):
    """A graph of costs, some nodes of which are taken away."""

    counts: Whole
    size: Whole
    """[nodes] choices."""
    at: Whole
    """[nodes]"""
    costs: Floats
    alone: Floats
    """[1] the least costs of nodes that nothing was joined to."""
    there: Flags
    """[nodes] whether it is left."""
    kept: Flags
    """[nodes] whether it has to be."""
    degree: Whole
    """[nodes] edges."""
    head: Whole
    """[nodes] the first end, or NONE."""
    node: Whole
    """[ends] the node."""
    next: Whole
    """[ends]"""
    before: Whole
    """[ends]"""
    base: Whole
    """[edges]"""
    joined: Flags
    """[edges] whether it is left."""
    range: Floats
    """[edges] the most by which its costs differ, NONE if that has to be found."""
    pool: Floats
    taken: Whole
    """[nodes taken away, 3] the node and its ends, in the order in which they were taken."""
    waiting: Whole
    row: Floats
    """Room for the costs of all choices of a node."""
    square: Floats
    """Room for those of an edge."""


def rest_of(sizes: Whole, edges: int, room: int) -> Rest:
    """A graph without edges whose costs are 0, with room for edges and their costs."""
    nodes, most = len(sizes), int(sizes.max(initial=1))
    ends = 2 * (edges + nodes)
    return Rest(
        counts=np.array([nodes, 0, 0, 0, 0], np.int64),
        size=sizes,
        at=np.cumsum(sizes) - sizes,
        costs=np.zeros(int(sizes.sum())),
        alone=np.zeros(1),
        there=np.ones(nodes, np.bool_),
        kept=np.zeros(nodes, np.bool_),
        degree=np.zeros(nodes, np.int64),
        head=np.full(nodes, NONE, np.int64),
        node=np.zeros(ends, np.int64),
        next=np.zeros(ends, np.int64),
        before=np.zeros(ends, np.int64),
        base=np.zeros(ends // 2, np.int64),
        joined=np.zeros(ends // 2, np.bool_),
        range=np.zeros(ends // 2),
        pool=np.zeros(room),
        taken=np.zeros((nodes, 3), np.int64),
        waiting=np.zeros(3 * nodes, np.int64),
        row=np.zeros(most),
        square=np.zeros((most, most)),
    )


def with_room(rest: Rest, needed: int) -> Rest:
    """The same with more room in the pool."""
    pool = np.zeros(max(needed, 2 * len(rest.pool)))
    pool[: len(rest.pool)] = rest.pool
    return rest._replace(pool=pool)


@compiled
def restart(rest: Rest) -> None:
    """All nodes, no edges."""
    nodes = len(rest.size)
    rest.counts[ALIVE] = nodes
    for what in (EDGES, USED, TAKEN, WAITING):
        rest.counts[what] = 0
    rest.alone[0] = 0.0
    for node in range(nodes):
        rest.there[node] = True
        rest.degree[node] = 0
        rest.head[node] = NONE


@compiled
def connect(rest: Rest, i: int, k: int) -> int:
    """A new edge between two nodes, the lower first; its costs are what the pool holds next."""
    edge = int(rest.counts[EDGES])
    rest.counts[EDGES] += 1
    rest.base[edge] = rest.counts[USED]
    rest.counts[USED] += rest.size[i] * rest.size[k]
    rest.joined[edge] = True
    rest.range[edge] = NONE
    for end, node in ((2 * edge, i), (2 * edge + 1, k)):
        first = rest.head[node]
        rest.node[end], rest.next[end], rest.before[end] = node, first, NONE
        if first >= 0:
            rest.before[first] = end
        rest.head[node] = end
        rest.degree[node] += 1
    return edge


@compiled
def connect_all(rest: Rest, ends: Whole) -> None:
    """New edges [edges, 2], whose costs lie in the pool in their order."""
    for n in range(len(ends)):
        connect(rest, ends[n, 0], ends[n, 1])


@inlined
def _disconnect(rest: Rest, edge: int) -> None:
    rest.joined[edge] = False
    for end in (2 * edge, 2 * edge + 1):
        node, before, after = rest.node[end], rest.before[end], rest.next[end]
        if before >= 0:
            rest.next[before] = after
        else:
            rest.head[node] = after
        if after >= 0:
            rest.before[after] = before
        rest.degree[node] -= 1


@inlined
def _edge(rest: Rest, i: int, k: int) -> int:
    """The edge between two nodes, or NONE; looked for at the node that has fewer."""
    one, other = (i, k) if rest.degree[i] <= rest.degree[k] else (k, i)
    end = rest.head[one]
    while end >= 0:
        if rest.node[end ^ 1] == other:
            return int(end // 2)
        end = rest.next[end]
    return NONE


@compiled
def await_all(rest: Rest) -> None:
    """Look at all nodes that are left once more, the lowest first."""
    rest.counts[WAITING] = 0
    for node in range(len(rest.size) - 1, -1, -1):
        if rest.there[node]:
            rest.waiting[rest.counts[WAITING]] = node
            rest.counts[WAITING] += 1


@compiled
def eliminate(rest: Rest) -> int:
    """Take nodes with at most two neighbours away, as long as there are others.

    Leaves 0, or how large the pool must be before it can go on.
    """
    count = rest.counts
    while count[WAITING] > 0 and count[ALIVE] > 1:
        node = rest.waiting[count[WAITING] - 1]
        if not rest.there[node] or rest.degree[node] > 2 or rest.kept[node]:
            count[WAITING] -= 1
            continue
        low = rest.head[node]
        high = rest.next[low] if low >= 0 else NONE
        if high >= 0 and rest.node[high ^ 1] < rest.node[low ^ 1]:
            low, high = high, low
        between = NONE
        if high >= 0:
            i, k = rest.node[low ^ 1], rest.node[high ^ 1]
            between = _edge(rest, i, k)
            needed = count[USED] + rest.size[i] * rest.size[k]
            if between < 0 and needed > len(rest.pool):
                return int(needed)
        count[WAITING] -= 1
        _take(rest, node, low, high, between)
        # The lower neighbour is looked at next.
        for end in (high, low):
            if end >= 0:
                rest.waiting[count[WAITING]] = rest.node[end ^ 1]
                count[WAITING] += 1
    return 0


@inlined
def _take(rest: Rest, node: int, low: int, high: int, between: int) -> None:
    """Take a node with these ends away; between its neighbours is an edge, or none yet."""
    taken = rest.counts[TAKEN]
    rest.taken[taken, 0], rest.taken[taken, 1], rest.taken[taken, 2] = node, low, high
    rest.counts[TAKEN] += 1
    rest.counts[ALIVE] -= 1
    rest.there[node] = False
    if low >= 0:
        _disconnect(rest, low // 2)
    if high >= 0:
        _disconnect(rest, high // 2)
        fresh = between < 0
        if fresh:
            between = connect(rest, rest.node[low ^ 1], rest.node[high ^ 1])
        _join(rest, node, low, high, between, fresh)
    elif low >= 0:
        _fold(rest, node, low)
    else:
        rest.alone[0] += least_of(rest, node)


@compiled
def least_of(rest: Rest, node: int) -> float:
    """The least cost of a node."""
    least = np.inf
    for x in range(rest.at[node], rest.at[node] + rest.size[node]):
        least = min(least, rest.costs[x])
    return least


@inlined
def _strides(rest: Rest, end: int) -> tuple[int, int]:
    """How far costs of an edge are apart by the choices of the node at an end, and of the other."""
    return (1, rest.size[rest.node[end]]) if end & 1 else (rest.size[rest.node[end ^ 1]], 1)


@inlined
def _fold(rest: Rest, node: int, end: int) -> None:
    """Add the least that a node costs to the choices of its only neighbour."""
    other, base = rest.node[end ^ 1], rest.base[end // 2]
    own, step = _strides(rest, end)
    for x in range(rest.size[other]):
        least = np.inf
        for y in range(rest.size[node]):
            least = min(least, rest.pool[base + y * own + x * step] + rest.costs[rest.at[node] + y])
        rest.costs[rest.at[other] + x] += least


@inlined
def _join(rest: Rest, node: int, low: int, high: int, edge: int, fresh: bool) -> None:
    """Put the least that a node costs between its two neighbours."""
    pool, square, row = rest.pool, rest.square, rest.row
    sizes, width = rest.size[node], rest.size[rest.node[high ^ 1]]
    own, step = _strides(rest, high)
    base = rest.base[high // 2]
    for y in range(sizes):
        for z in range(width):
            square[y, z] = pool[base + y * own + z * step]
    own, step = _strides(rest, low)
    base, costs = rest.base[low // 2], rest.at[node]
    for x in range(rest.size[rest.node[low ^ 1]]):
        for z in range(width):
            row[z] = np.inf
        for y in range(sizes):
            known = pool[base + y * own + x * step] + rest.costs[costs + y]
            for z in range(width):
                row[z] = min(row[z], known + square[y, z])
        target = rest.base[edge] + x * width
        for z in range(width):
            pool[target + z] = row[z] if fresh else pool[target + z] + row[z]
    rest.range[edge] = NONE


@compiled
def loosen(rest: Rest) -> float:
    """Take away the edge whose costs differ least; leaves its least cost."""
    best, chosen = np.inf, NONE
    for edge in range(rest.counts[EDGES]):
        if not rest.joined[edge]:
            continue
        i, k = rest.node[2 * edge], rest.node[2 * edge + 1]
        if rest.kept[i] and rest.kept[k]:
            continue
        if rest.range[edge] < 0:
            least, most = _extremes(rest, edge)
            # Where nothing is possible, nothing differs.
            rest.range[edge] = most - least if most > least else 0.0
        own = rest.range[edge]
        if own < best or (own == best and (i, k) < _nodes(rest, chosen)):
            best, chosen = own, edge
    _disconnect(rest, chosen)
    return _extremes(rest, chosen)[0]


@inlined
def _nodes(rest: Rest, edge: int) -> tuple[int, int]:
    return rest.node[2 * edge], rest.node[2 * edge + 1]


@inlined
def _extremes(rest: Rest, edge: int) -> tuple[float, float]:
    """The least and the largest cost of an edge."""
    base = rest.base[edge]
    least, most = np.inf, -np.inf
    for n in range(
        base, base + rest.size[rest.node[2 * edge]] * rest.size[rest.node[2 * edge + 1]]
    ):
        least, most = min(least, rest.pool[n]), max(most, rest.pool[n])
    return least, most


@compiled
def settle(rest: Rest, choice: Whole) -> None:
    """Choose for nodes that were taken away what is best beside the choices of the others."""
    for n in range(rest.counts[TAKEN] - 1, -1, -1):
        node = rest.taken[n, 0]
        row, size = rest.row, rest.size[node]
        for x in range(size):
            row[x] = rest.costs[rest.at[node] + x]
        for end in (rest.taken[n, 1], rest.taken[n, 2]):
            if end >= 0:
                own, step = _strides(rest, end)
                base = rest.base[end // 2] + step * choice[rest.node[end ^ 1]]
                for x in range(size):
                    row[x] += rest.pool[base + own * x]
        best = 0
        for x in range(1, size):
            if row[x] < row[best]:
                best = x
        choice[node] = best
