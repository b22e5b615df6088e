"""Variable elimination (bucket elimination, Dechter 1999), compiled: nodes taken out of a cost
network. Enters: a `CostNetwork`. Leaves: less of it, and the choices of nodes that were taken away.

A table that is made of the same tables as another is that one: repeated layers are joined once.
Compiled code makes no arrays: where the pool is too small, `eliminate` says how much is needed.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.compiled import compiled, inlined
from meshwright.solvers.cost_network import (
    ALIVE,
    EDGES,
    NEXT,
    NONE,
    TAKEN,
    USED,
    WAITING,
    CostNetwork,
    Whole,
    add_edge_at,
    disconnect,
    edge_of,
    fresh,
    nodes,
    strides,
)


@compiled
def queue_all_nodes(rest: CostNetwork) -> None:
    """Look at all nodes that are left once more, the lowest first."""
    rest.counts[NEXT] = rest.counts[WAITING] = 0
    for node in range(len(rest.size)):
        if rest.alive[node]:
            rest.waiting[rest.counts[WAITING]] = node
            rest.counts[WAITING] += 1


@compiled
def eliminate(rest: CostNetwork) -> int:
    """Take nodes with at most two neighbours away, as long as there are others.

    All are looked at before any is once more: so repeated layers become less in the same way.
    Leaves 0, or how large the pool must be before it can go on.
    """
    count = rest.counts
    while count[NEXT] < count[WAITING] and count[ALIVE] > 1:
        node = rest.waiting[count[NEXT]]
        if not rest.alive[node] or rest.degree[node] > 2 or rest.kept[node]:
            count[NEXT] += 1
            continue
        low = rest.head[node]
        high = rest.next[low] if low >= 0 else NONE
        if high >= 0 and rest.node[high ^ 1] < rest.node[low ^ 1]:
            low, high = high, low
        between = NONE
        if high >= 0:
            i, k = rest.node[low ^ 1], rest.node[high ^ 1]
            between = edge_of(rest, i, k)
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
def _take(rest: CostNetwork, node: int, low: int, high: int, between: int) -> None:
    """Take a node with these ends away; between its neighbours is an edge, or none yet."""
    taken = rest.counts[TAKEN]
    rest.taken[taken, 0], rest.taken[taken, 1], rest.taken[taken, 2] = node, low, high
    rest.counts[TAKEN] += 1
    rest.counts[ALIVE] -= 1
    rest.alive[node] = False
    if low >= 0:
        disconnect(rest, low // 2)
    if high >= 0:
        disconnect(rest, high // 2)
        mark, base = _join(rest, node, low, high)
        if between < 0:
            add_edge_at(rest, rest.node[low ^ 1], rest.node[high ^ 1], mark, base)
        else:
            _add(rest, between, mark, base)
    elif low >= 0:
        _fold(rest, node, low)
    else:
        rest.alone[0] += _least_of(rest, node)


@inlined
def _place(rest: CostNetwork, one: int, between: int, other: int) -> int:
    """Where the table that is made of some others is remembered, or would be."""
    known, mask = rest.known, len(rest.known) - 1
    at = ((one * 0x9E3779B1) ^ (between * 0x85EBCA77) ^ (other * 0xC2B2AE3D)) & mask
    while known[at, 0] >= 0 and not (
        known[at, 0] == one and known[at, 1] == between and known[at, 2] == other
    ):
        at = (at + 1) & mask
    return at


@inlined
def _made(rest: CostNetwork, at: int, one: int, between: int, other: int, size: int) -> int:
    """Remember a table that the pool holds next; leaves where it begins."""
    base = rest.counts[USED]
    rest.counts[USED] += size
    rest.known[at, 0], rest.known[at, 1], rest.known[at, 2] = one, between, other
    rest.known[at, 3], rest.known[at, 4] = fresh(rest), base
    return int(base)


@inlined
def _add(rest: CostNetwork, edge: int, mark: int, base: int) -> None:
    """Add a table to that of an edge."""
    (i, k), before = nodes(rest, edge), rest.base[edge]
    one, other = 2 * rest.edge_mark[edge], 2 * mark
    at = _place(rest, one, NONE, other)
    if rest.known[at, 0] < 0:
        size = rest.size[i] * rest.size[k]
        start = _made(rest, at, one, NONE, other, size)
        for n in range(size):
            rest.pool[start + n] = rest.pool[before + n] + rest.pool[base + n]
    rest.edge_mark[edge], rest.base[edge] = rest.known[at, 3], rest.known[at, 4]
    rest.range[edge] = NONE


@inlined
def _least_of(rest: CostNetwork, node: int) -> float:
    """The least cost of a node."""
    least = np.inf
    for x in range(rest.at[node], rest.at[node] + rest.size[node]):
        least = min(least, rest.costs[x])
    return least


@inlined
def _fold(rest: CostNetwork, node: int, end: int) -> None:
    """Add the least that a node costs to the choices of its only neighbour."""
    other, base = rest.node[end ^ 1], rest.base[end // 2]
    stride, step = strides(rest, end)
    for x in range(rest.size[other]):
        least = np.inf
        for y in range(rest.size[node]):
            least = min(
                least, rest.pool[base + y * stride + x * step] + rest.costs[rest.at[node] + y]
            )
        rest.costs[rest.at[other] + x] += least
    rest.mark[other] = fresh(rest)


@inlined
def _join(rest: CostNetwork, node: int, low: int, high: int) -> tuple[int, int]:
    """The mark of what a node costs at least between its two neighbours, and where it begins."""
    marks = rest.edge_mark
    one, other = 2 * marks[low // 2] + (low & 1), 2 * marks[high // 2] + (high & 1)
    at = _place(rest, one, rest.mark[node], other)
    if rest.known[at, 0] < 0:
        size = rest.size[rest.node[low ^ 1]] * rest.size[rest.node[high ^ 1]]
        start = _made(rest, at, one, rest.mark[node], other, size)
        _least_sums(rest, node, low, high, start)
    return rest.known[at, 3], rest.known[at, 4]


@inlined
def _least_sums(rest: CostNetwork, node: int, low: int, high: int, target: int) -> None:
    """For each pair of choices of its neighbours the least that a node costs between them."""
    pool, square, row, after = rest.pool, rest.square, rest.row, rest.after
    sizes, width = rest.size[node], rest.size[rest.node[high ^ 1]]
    stride, step = strides(rest, high)
    base = rest.base[high // 2]
    for y in range(sizes):
        for z in range(width):
            square[y, z] = pool[base + y * stride + z * step]
    stride, step = strides(rest, low)
    base, costs = rest.base[low // 2], rest.at[node]
    last = rest.size[rest.node[low ^ 1]] - 1
    for x in range(0, last + 1, 2):
        # Two rows at a time, as reading costs more than adding; the last may be one of them twice.
        then = min(x + 1, last)
        for z in range(width):
            row[z] = after[z] = np.inf
        for y in range(sizes):
            one = pool[base + y * stride + x * step] + rest.costs[costs + y]
            other = pool[base + y * stride + then * step] + rest.costs[costs + y]
            for z in range(width):
                row[z] = min(row[z], one + square[y, z])
                after[z] = min(after[z], other + square[y, z])
        for z in range(width):
            pool[target + x * width + z] = row[z]
            pool[target + then * width + z] = after[z]


@compiled
def loosen(rest: CostNetwork) -> float:
    """Take away the edge whose costs differ least; leaves its least cost."""
    best, chosen = np.inf, NONE
    for edge in range(rest.counts[EDGES]):
        if not rest.joined[edge]:
            continue
        i, k = nodes(rest, edge)
        if rest.kept[i] and rest.kept[k]:
            continue
        if rest.range[edge] < 0:
            least, most = _extremes(rest, edge)
            # Where nothing is possible, nothing differs.
            rest.range[edge] = most - least if most > least else 0.0
        spread = rest.range[edge]
        if chosen < 0 or spread < best or (spread == best and (i, k) < nodes(rest, chosen)):
            best, chosen = spread, edge
    disconnect(rest, chosen)
    return _extremes(rest, chosen)[0]


@inlined
def _extremes(rest: CostNetwork, edge: int) -> tuple[float, float]:
    """The least and the largest cost of an edge."""
    (i, k), base = nodes(rest, edge), rest.base[edge]
    least, most = np.inf, -np.inf
    for n in range(base, base + rest.size[i] * rest.size[k]):
        least, most = min(least, rest.pool[n]), max(most, rest.pool[n])
    return least, most


@compiled
def settle(rest: CostNetwork, choice: Whole) -> None:
    """Choose for nodes that were taken away what is best beside the choices of the others."""
    for n in range(rest.counts[TAKEN] - 1, -1, -1):
        node = rest.taken[n, 0]
        row, size = rest.row, rest.size[node]
        for x in range(size):
            row[x] = rest.costs[rest.at[node] + x]
        for end in (rest.taken[n, 1], rest.taken[n, 2]):
            if end >= 0:
                stride, step = strides(rest, end)
                base = rest.base[end // 2] + step * choice[rest.node[end ^ 1]]
                for x in range(size):
                    row[x] += rest.pool[base + stride * x]
        best = 0
        for x in range(1, size):
            if row[x] < row[best]:
                best = x
        choice[node] = best
