"""Variable elimination on a cost network (OptCNN's node and edge eliminations, Jia et al. 2018),
then a beam on what is left. Enters: costs of each choice of a node, and of each pair of choices of
two nodes that are joined. Leaves: the choice, and how far it is exact.

With w_i(x) the cost of choice x at node i and e_ij(x, y) that of choices x and y at joined nodes,

    minimise Σ w_i(x_i) + Σ e_ij(x_i, x_j)                                            `cost`
OptCNN's eliminations keep the minimum: parallel edges are added up; a node with two neighbours
becomes an edge between them, one with a single neighbour becomes part of its costs:
    e'_ik(x, z) = min over y of e_ij(x, y) + w_j(y) + e_jk(y, z)                      `eliminate`
    w'_i(x)     = w_i(x) + min over y of e_ij(x, y) + w_j(y)
What they leave over (nothing in a chain, or where branches meet again) is chosen by a beam in the
order of the nodes, then improved node by node; that part alone may be short of the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.interning import grouped
from meshwright.solvers.cost_network import (
    ALIVE,
    EDGES,
    CostNetwork,
    empty_network,
    load,
    with_room,
)
from meshwright.solvers.eliminate import eliminate, loosen, queue_all_nodes, settle

Costs = NDArray[np.float64]

BEAM = 64
"""Partial choices that are kept."""

ROOM = 16
"""Tables of the two largest nodes for which there is room at first."""

ROUNDING = 1e-12
"""The share of a cost below which a difference counts for nothing."""


class CostGraph(NamedTuple):
    """Costs of the nodes, and of the edges from a lower to a higher node."""

    nodes: Sequence[Costs]
    edges: Mapping[tuple[int, int], Costs]


class Answer(NamedTuple):
    """A choice for each node."""

    choice: tuple[int, ...]
    cost: float
    left: int
    """Nodes that eliminations left over; 0 if the choice is a minimum for certain."""


def cost(graph: CostGraph, choice: Sequence[int]) -> float:
    """What a choice costs."""
    total = sum(float(costs[x]) for costs, x in zip(graph.nodes, choice, strict=True))
    return total + sum(float(e[choice[i], choice[j]]) for (i, j), e in graph.edges.items())


def cheapest(graph: CostGraph) -> Answer:
    """A cheapest choice, or where eliminations do not suffice a good one."""
    rest = _eliminated(_loaded(graph))
    chosen = _chosen(rest)
    choice = np.zeros(len(graph.nodes), np.int64)
    for node, x in chosen.items():
        choice[node] = x
    settle(rest, choice)
    ordered = tuple(choice.tolist())
    return Answer(ordered, cost(graph, ordered), len(chosen) if len(chosen) > 1 else 0)


def between(graph: CostGraph, one: int, other: int) -> Costs:
    """[choices of a node, choices of another] what everything costs at least.

    Where eliminations do not suffice the edge whose costs differ least counts as its least cost,
    until they do: then the table is a lower bound.
    """
    rest = _loaded(graph)
    kept = {one, other}
    rest.kept[list(kept)] = True
    rest, constant = _loosened(rest, len(kept))
    table: Costs = _own(rest, one)[:, None] + constant
    if one == other:
        return table
    edge = _edges(rest).get((one, other))
    table = table + _own(rest, other)[None]
    return table if edge is None else table + edge


def bounded(graph: CostGraph) -> tuple[float, tuple[int, ...]]:
    """No more than the least cost, and a choice that costs about as much.

    Edges count as their least cost where eliminations do not suffice, as in `between`: the number
    is the least cost if none does.
    """
    choice = np.zeros(len(graph.nodes), np.int64)
    least, _ = settled(_loaded(graph), choice)
    return least, tuple(choice.tolist())


def settled(rest: CostNetwork, choice: NDArray[np.int64]) -> tuple[float, CostNetwork]:
    """As `bounded`, of a graph that is loaded; with the room that it took."""
    rest, least = _loosened(rest, 1)
    for node in np.flatnonzero(rest.alive).tolist():
        costs = _own(rest, node)
        choice[node] = costs.argmin()
        least += float(costs.min())
    settle(rest, choice)
    return least, rest


def _loosened(rest: CostNetwork, left: int) -> tuple[CostNetwork, float]:
    """What is left when edges count as their least cost until no more nodes are left; and what all
    that was taken away costs by itself.
    """
    rest = _eliminated(rest)
    constant = 0.0
    while rest.counts[ALIVE] > left:
        constant += loosen(rest)
        rest = _eliminated(rest)
    return rest, constant + float(rest.alone[0])


def _loaded(graph: CostGraph) -> CostNetwork:
    """A graph to be eliminated; equal costs, as in repeated layers, stand there once."""
    sizes = np.array([len(costs) for costs in graph.nodes], np.int64)
    edges = list(graph.edges.values())
    tables, which = grouped(map(_memory, edges))
    lengths = [math.prod(shape) for _, _, shape in tables]
    used, begins = sum(lengths), np.cumsum([0, *lengths])
    rest = empty_network(sizes, len(edges), used + ROOM * int(sizes.max(initial=0)) ** 2)
    np.concatenate([*graph.nodes, []], out=rest.costs)
    for table, begin in {n: (edges[e], begins[n]) for e, n in enumerate(which)}.values():
        rest.pool[begin : begin + table.size] = table.reshape(-1)
    _, marks = grouped(costs.tobytes() for costs in graph.nodes)
    ends = np.array(list(graph.edges), np.int64).reshape(-1, 2)
    load(rest, marks, ends, which, begins[which], used)
    return rest


def _memory(table: Costs) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """What tells the tables of living arrays apart: where they are, and how they are read."""
    return table.ctypes.data, table.strides, table.shape


def _eliminated(rest: CostNetwork) -> CostNetwork:
    queue_all_nodes(rest)
    while needed := eliminate(rest):
        rest = with_room(rest, needed)
    return rest


def _own(rest: CostNetwork, node: int) -> Costs:
    """The costs of a node."""
    return rest.costs[rest.at[node] : rest.at[node] + rest.size[node]]


def _edges(rest: CostNetwork) -> dict[tuple[int, int], Costs]:
    """The costs of all edges that are left, in both directions."""
    tables: dict[tuple[int, int], Costs] = {}
    for edge in np.flatnonzero(rest.joined[: rest.counts[EDGES]]).tolist():
        i, k = rest.node[2 * edge : 2 * edge + 2].tolist()
        base, shape = rest.base[edge], (rest.size[i], rest.size[k])
        tables[i, k] = rest.pool[base : base + math.prod(shape)].reshape(shape)
        tables[k, i] = tables[i, k].T
    return tables


def _chosen(rest: CostNetwork) -> dict[int, int]:
    """A choice for what is left: by a beam, then node by node until nothing improves."""
    order, edges = np.flatnonzero(rest.alive).tolist(), _edges(rest)
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for at, node in enumerate(order):
        grown = []
        for so_far, choices in beam:
            total = so_far + _own(rest, node)
            for before, x in zip(order[:at], choices, strict=True):
                if (node, before) in edges:
                    total = total + edges[node, before][:, x]
            for y in np.argsort(total, kind="stable")[:BEAM].tolist():
                grown.append((float(total[y]), (*choices, y)))
        beam = sorted(grown)[:BEAM]
    return _improved(rest, edges, dict(zip(order, beam[0][1], strict=True)))


def _improved(
    rest: CostNetwork, edges: Mapping[tuple[int, int], Costs], choice: dict[int, int]
) -> dict[int, int]:
    around: dict[int, list[int]] = {}
    for node, other in edges:
        around.setdefault(node, []).append(other)
    changed = True
    while changed:
        changed = False
        for node, x in choice.items():
            total = _own(rest, node).copy()
            for other in around.get(node, ()):
                total += edges[node, other][:, choice[other]]
            least = float(total.min())
            # By more than rounding, so that it comes to an end; infinite costs are alike.
            if least < total[x] and not math.isclose(least, total[x], rel_tol=ROUNDING):
                choice[node], changed = int(total.argmin()), True
    return choice
