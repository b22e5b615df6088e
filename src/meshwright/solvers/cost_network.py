"""A pairwise cost network (weighted constraint network), packed for compiled code. Enters: sizes of
nodes, edges. Leaves: `CostNetwork`.

    w_i(x)      costs of choice x of node i             `costs[at[i] + x]`
    e_ij(x, y)  of choices x and y of i < j             `pool[base[e] + x * size[j] + y]`
An edge e has two ends, 2e at its lower node and 2e + 1 at the other; the ends of a node are a list
with links in both directions, so that taking one away costs the same however many there are.
What costs the same by how it came about has the same mark.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled, inlined

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = -1

ALIVE, EDGES, USED, TAKEN, NEXT, WAITING, MARKS = range(7)
"""In `CostNetwork.counts`: nodes that are left, edges, numbers in the pool, nodes taken away, nodes
that were looked at and that wait for it, marks."""

SPARE = 4
"""Places to remember tables in, for each table that may be made: more than twice as many, so that
a free one is near."""


class CostNetwork(NamedTuple):
    """A graph of costs, some nodes of which are taken away."""

    counts: Whole
    size: Whole
    """[nodes] choices."""
    at: Whole
    """[nodes]"""
    costs: Floats
    alone: Floats
    """[1] the least costs of nodes that nothing was joined to."""
    alive: Flags
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


def empty_network(sizes: Whole, edges: int, room: int) -> CostNetwork:
    """A graph without edges whose costs are 0, with room for edges and their costs."""
    nodes, most = len(sizes), int(sizes.max(initial=1))
    ends = 2 * (edges + nodes)
    return CostNetwork(
        counts=np.array([nodes, 0, 0, 0, 0, 0, nodes], np.int64),
        size=sizes,
        at=np.cumsum(sizes) - sizes,
        costs=np.zeros(int(sizes.sum())),
        alone=np.zeros(1),
        alive=np.ones(nodes, np.bool_),
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


def with_room(rest: CostNetwork, needed: int) -> CostNetwork:
    """The same with more room in the pool."""
    pool = np.zeros(max(needed, 2 * len(rest.pool)))
    pool[: len(rest.pool)] = rest.pool
    return rest._replace(pool=pool)


@compiled
def restart(rest: CostNetwork) -> None:
    """All nodes, no edges."""
    nodes = len(rest.size)
    rest.counts[ALIVE] = rest.counts[MARKS] = nodes
    for what in (EDGES, USED, TAKEN, NEXT, WAITING):
        rest.counts[what] = 0
    rest.alone[0] = 0.0
    for place in range(len(rest.known)):
        rest.known[place, 0] = NONE
    for node in range(nodes):
        rest.alive[node], rest.mark[node] = True, node
        rest.degree[node] = 0
        rest.head[node] = NONE


@inlined
def fresh(rest: CostNetwork) -> int:
    """A mark that nothing has."""
    rest.counts[MARKS] += 1
    return int(rest.counts[MARKS]) - 1


@compiled
def connect(rest: CostNetwork, i: int, k: int) -> int:
    """A new edge between two nodes, the lower first; its costs are what the pool holds next."""
    base = rest.counts[USED]
    rest.counts[USED] += rest.size[i] * rest.size[k]
    return add_edge_at(rest, i, k, fresh(rest), base)


@inlined
def add_edge_at(rest: CostNetwork, i: int, k: int, mark: int, base: int) -> int:
    """A new edge between two nodes, the lower first, whose costs begin somewhere in the pool."""
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
def load(
    rest: CostNetwork, marks: Whole, ends: Whole, tables: Whole, bases: Whole, used: int
) -> None:
    """Give nodes marks, and connect nodes [edges, 2] by tables that are in the pool already, each
    edge by the one of its number.
    """
    rest.counts[USED], rest.counts[MARKS] = used, len(marks) + len(ends)
    for node in range(len(marks)):
        rest.mark[node] = marks[node]
    for n in range(len(ends)):
        add_edge_at(rest, ends[n, 0], ends[n, 1], len(marks) + tables[n], bases[n])


@inlined
def disconnect(rest: CostNetwork, edge: int) -> None:
    """Take an edge away; its costs stay in the pool."""
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
def edge_of(rest: CostNetwork, i: int, k: int) -> int:
    """The edge between two nodes, or NONE; looked for at the node that has fewer."""
    one, other = (i, k) if rest.degree[i] <= rest.degree[k] else (k, i)
    end = rest.head[one]
    while end >= 0:
        if rest.node[end ^ 1] == other:
            return int(end // 2)
        end = rest.next[end]
    return NONE


@inlined
def nodes(rest: CostNetwork, edge: int) -> tuple[int, int]:
    """The nodes of an edge, the lower first."""
    return rest.node[2 * edge], rest.node[2 * edge + 1]


@inlined
def strides(rest: CostNetwork, end: int) -> tuple[int, int]:
    """How far costs of an edge are apart by the choices of the node at an end, and of the other."""
    return (1, rest.size[rest.node[end]]) if end & 1 else (rest.size[rest.node[end ^ 1]], 1)
