"""Nodes taken out of a graph of costs, compiled. Enters: costs of nodes and edges, one behind the
other. Leaves: what is left of them, and the choices of nodes that were taken away.

    w_i(x)      costs of choice x of node i             `costs[at[i] + x]`
    e_ij(x, y)  of choices x and y of i < j             `pool[base[e] + x * size[j] + y]`
An edge e has two ends, 2e at its lower node and 2e + 1 at the other; the ends of a node are a list
with links in both directions, so that taking one away costs the same however many there are.
What costs the same by how it came about has the same mark, and a table that is made of the same
tables as another is that one: repeated layers are joined once. Compiled code makes no arrays: where
`pool` is too small, a function says how much is needed.
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

ALIVE, EDGES, USED, TAKEN, NEXT, WAITING, MARKS = range(7)
"""In `Rest.counts`: nodes that are left, edges, numbers in the pool, nodes taken away, nodes that
were looked at and that wait for it, marks."""

SPARE = 4
"""Places to remember tables in, for each table that may be made: more than twice as many, so that
a free one is near."""


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
    mark: Whole
    """[nodes] of its costs."""
    edge_mark: Whole
    """[edges]"""
    joined: Flags
    """[edges] whether it is left."""
    range: Floats
    """[edges] the most by which its costs differ, NONE if that has to be found."""
    pool: Floats
    taken: Whole
    """[nodes taken away, 3] the node and its ends, in the order in which they were taken."""
    waiting: Whole
    known: Whole
    """[places, 5] of tables: what they are made of, the mark, where they begin."""
    row: Floats
    """Room for the costs of all choices of a node."""
    after: Floats
    """The same."""
    square: Floats
    """Room for those of an edge."""


def rest_of(sizes: Whole, edges: int, room: int) -> Rest:
    """A graph without edges whose costs are 0, with room for edges and their costs."""
    nodes, most = len(sizes), int(sizes.max(initial=1))
    ends = 2 * (edges + nodes)
    return Rest(
        counts=np.array([nodes, 0, 0, 0, 0, 0, nodes], np.int64),
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
        mark=np.arange(nodes),
        edge_mark=np.zeros(ends // 2, np.int64),
        joined=np.zeros(ends // 2, np.bool_),
        range=np.zeros(ends // 2),
        pool=np.zeros(room),
        taken=np.zeros((nodes, 3), np.int64),
        waiting=np.zeros(3 * nodes, np.int64),
        known=np.full((1 << int(2 * SPARE * nodes).bit_length(), 5), NONE, np.int64),
        row=np.zeros(most),
        after=np.zeros(most),
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
    rest.counts[ALIVE] = rest.counts[MARKS] = nodes
    for what in (EDGES, USED, TAKEN, NEXT, WAITING):
        rest.counts[what] = 0
    rest.alone[0] = 0.0
    for place in range(len(rest.known)):
        rest.known[place, 0] = NONE
    for node in range(nodes):
        rest.there[node], rest.mark[node] = True, node
        rest.degree[node] = 0
        rest.head[node] = NONE


@inlined
def _fresh(rest: Rest) -> int:
    """A mark that nothing has."""
    rest.counts[MARKS] += 1
    return int(rest.counts[MARKS]) - 1


@compiled
def connect(rest: Rest, i: int, k: int) -> int:
    """A new edge between two nodes, the lower first; its costs are what the pool holds next."""
    base = rest.counts[USED]
    rest.counts[USED] += rest.size[i] * rest.size[k]
    return _connected(rest, i, k, _fresh(rest), base)


@inlined
def _connected(rest: Rest, i: int, k: int, mark: int, base: int) -> int:
    edge = int(rest.counts[EDGES])
    rest.counts[EDGES] += 1
    rest.edge_mark[edge], rest.base[edge], rest.joined[edge] = mark, base, True
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
def load(rest: Rest, marks: Whole, ends: Whole, tables: Whole, bases: Whole, used: int) -> None:
    """Give nodes marks, and connect nodes [edges, 2] by tables that are in the pool already, each
    edge by the one of its number.
    """
    rest.counts[USED], rest.counts[MARKS] = used, len(marks) + len(ends)
    for node in range(len(marks)):
        rest.mark[node] = marks[node]
    for n in range(len(ends)):
        _connected(rest, ends[n, 0], ends[n, 1], len(marks) + tables[n], bases[n])


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
    rest.counts[NEXT] = rest.counts[WAITING] = 0
    for node in range(len(rest.size)):
        if rest.there[node]:
            rest.waiting[rest.counts[WAITING]] = node
            rest.counts[WAITING] += 1


@compiled
def eliminate(rest: Rest) -> int:
    """Take nodes with at most two neighbours away, as long as there are others.

    All are looked at before any is once more: so repeated layers become less in the same way.
    Leaves 0, or how large the pool must be before it can go on.
    """
    count = rest.counts
    while count[NEXT] < count[WAITING] and count[ALIVE] > 1:
        node = rest.waiting[count[NEXT]]
        if not rest.there[node] or rest.degree[node] > 2 or rest.kept[node]:
            count[NEXT] += 1
            continue
        low = rest.head[node]
        high = rest.next[low] if low >= 0 else NONE
        if high >= 0 and rest.node[high ^ 1] < rest.node[low ^ 1]:
            low, high = high, low
        between = NONE
        if high >= 0:
            i, k = rest.node[low ^ 1], rest.node[high ^ 1]
            between = _edge(rest, i, k)
            # A table is made, and maybe added to another.
            needed = count[USED] + 2 * rest.size[i] * rest.size[k]
            if needed > len(rest.pool):
                return int(needed)
        count[NEXT] += 1
        _take(rest, node, low, high, between)
        for end in (low, high):
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
        mark, base = _join(rest, node, low, high)
        if between < 0:
            _connected(rest, rest.node[low ^ 1], rest.node[high ^ 1], mark, base)
        else:
            _add(rest, between, mark, base)
    elif low >= 0:
        _fold(rest, node, low)
    else:
        rest.alone[0] += least_of(rest, node)


@inlined
def _place(rest: Rest, one: int, between: int, other: int) -> int:
    """Where the table that is made of some others is remembered, or would be."""
    known, mask = rest.known, len(rest.known) - 1
    at = ((one * 0x9E3779B1) ^ (between * 0x85EBCA77) ^ (other * 0xC2B2AE3D)) & mask
    while known[at, 0] >= 0 and not (
        known[at, 0] == one and known[at, 1] == between and known[at, 2] == other
    ):
        at = (at + 1) & mask
    return at


@inlined
def _made(rest: Rest, at: int, one: int, between: int, other: int, size: int) -> int:
    """Remember a table that the pool holds next; leaves where it begins."""
    base = rest.counts[USED]
    rest.counts[USED] += size
    rest.known[at, 0], rest.known[at, 1], rest.known[at, 2] = one, between, other
    rest.known[at, 3], rest.known[at, 4] = _fresh(rest), base
    return int(base)


@inlined
def _add(rest: Rest, edge: int, mark: int, base: int) -> None:
    """Add a table to that of an edge."""
    (i, k), before = _nodes(rest, edge), rest.base[edge]
    one, other = 2 * rest.edge_mark[edge], 2 * mark
    at = _place(rest, one, NONE, other)
    if rest.known[at, 0] < 0:
        size = rest.size[i] * rest.size[k]
        made = _made(rest, at, one, NONE, other, size)
        for n in range(size):
            rest.pool[made + n] = rest.pool[before + n] + rest.pool[base + n]
    rest.edge_mark[edge], rest.base[edge] = rest.known[at, 3], rest.known[at, 4]
    rest.range[edge] = NONE


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
    rest.mark[other] = _fresh(rest)


@inlined
def _join(rest: Rest, node: int, low: int, high: int) -> tuple[int, int]:
    """The mark of what a node costs at least between its two neighbours, and where it begins."""
    marks = rest.edge_mark
    one, other = 2 * marks[low // 2] + (low & 1), 2 * marks[high // 2] + (high & 1)
    at = _place(rest, one, rest.mark[node], other)
    if rest.known[at, 0] < 0:
        size = rest.size[rest.node[low ^ 1]] * rest.size[rest.node[high ^ 1]]
        made = _made(rest, at, one, rest.mark[node], other, size)
        _least_sums(rest, node, low, high, made)
    return rest.known[at, 3], rest.known[at, 4]


@inlined
def _least_sums(rest: Rest, node: int, low: int, high: int, target: int) -> None:
    """For each pair of choices of its neighbours the least that a node costs between them."""
    pool, square, row, after = rest.pool, rest.square, rest.row, rest.after
    sizes, width = rest.size[node], rest.size[rest.node[high ^ 1]]
    own, step = _strides(rest, high)
    base = rest.base[high // 2]
    for y in range(sizes):
        for z in range(width):
            square[y, z] = pool[base + y * own + z * step]
    own, step = _strides(rest, low)
    base, costs = rest.base[low // 2], rest.at[node]
    last = rest.size[rest.node[low ^ 1]] - 1
    for x in range(0, last + 1, 2):
        # Two rows at a time, as reading costs more than adding; the last may be one of them twice.
        then = min(x + 1, last)
        for z in range(width):
            row[z] = after[z] = np.inf
        for y in range(sizes):
            one = pool[base + y * own + x * step] + rest.costs[costs + y]
            other = pool[base + y * own + then * step] + rest.costs[costs + y]
            for z in range(width):
                row[z] = min(row[z], one + square[y, z])
                after[z] = min(after[z], other + square[y, z])
        for z in range(width):
            pool[target + x * width + z] = row[z]
            pool[target + then * width + z] = after[z]


@compiled
def loosen(rest: Rest) -> float:
    """Take away the edge whose costs differ least; leaves its least cost."""
    best, chosen = np.inf, NONE
    for edge in range(rest.counts[EDGES]):
        if not rest.joined[edge]:
            continue
        i, k = _nodes(rest, edge)
        if rest.kept[i] and rest.kept[k]:
            continue
        if rest.range[edge] < 0:
            least, most = _extremes(rest, edge)
            # Where nothing is possible, nothing differs.
            rest.range[edge] = most - least if most > least else 0.0
        own = rest.range[edge]
        if chosen < 0 or own < best or (own == best and (i, k) < _nodes(rest, chosen)):
            best, chosen = own, edge
    _disconnect(rest, chosen)
    return _extremes(rest, chosen)[0]


@inlined
def _nodes(rest: Rest, edge: int) -> tuple[int, int]:
    return rest.node[2 * edge], rest.node[2 * edge + 1]


@inlined
def _extremes(rest: Rest, edge: int) -> tuple[float, float]:
    """The least and the largest cost of an edge."""
    (i, k), base = _nodes(rest, edge), rest.base[edge]
    least, most = np.inf, -np.inf
    for n in range(base, base + rest.size[i] * rest.size[k]):
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
