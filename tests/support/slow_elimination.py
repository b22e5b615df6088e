"""`solvers.variable_elimination` slowly: nodes are taken out of dictionaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Set

import numpy as np

from meshwright.solvers.variable_elimination import BEAM, ROUNDING, Answer, CostGraph, Costs, cost


def cheapest(graph: CostGraph) -> Answer:
    """A cheapest choice, or where eliminations do not suffice a good one."""
    rest = _Reducing(graph)
    rest.eliminate()
    choice = rest.chosen()
    left = len(choice)
    rest.settle(choice)
    ordered = tuple(choice[node] for node in range(len(graph.nodes)))
    return Answer(ordered, cost(graph, ordered), left if left > 1 else 0)


def between(graph: CostGraph, one: int, other: int) -> Costs:
    """[choices of a node, choices of another] what everything costs at least.

    Where eliminations do not suffice the edge whose costs differ least counts as its least cost,
    until they do: then the table is a lower bound.
    """
    rest = _Reducing(graph)
    kept = {one, other}
    rest.eliminate(kept)
    constant = 0.0
    while len(rest.edges) > len(kept):
        constant += rest.loosen(kept)
        rest.eliminate(kept)
    table: Costs = rest.costs[one][:, None] + constant + rest.alone
    if one == other:
        return table
    table = table + rest.costs[other][None]
    return table + rest.edges[one][other] if other in rest.edges[one] else table


def bounded(graph: CostGraph) -> tuple[float, tuple[int, ...]]:
    """No more than the least cost, and a choice that costs about as much.

    Edges count as their least cost where eliminations do not suffice, as in `between`: the number
    is the least cost if none does.
    """
    rest = _Reducing(graph)
    rest.eliminate()
    constant = 0.0
    while len(rest.edges) > 1:
        constant += rest.loosen(frozenset())
        rest.eliminate()
    choice: dict[int, int] = {}
    least = constant + rest.alone
    for node in rest.edges:
        choice[node] = int(rest.costs[node].argmin())
        least += float(rest.costs[node].min())
    rest.settle(choice)
    return least, tuple(choice[node] for node in range(len(graph.nodes)))


class _Reducing:
    """A graph from which nodes are taken away."""

    def __init__(self, graph: CostGraph) -> None:
        self.costs = [node.astype(np.float64) for node in graph.nodes]
        self.edges: dict[int, dict[int, Costs]] = {i: {} for i in range(len(self.costs))}
        """For each node and neighbour the costs, choices of the node first."""
        self.eliminated: list[tuple[int, dict[int, Costs]]] = []
        self.alone = 0.0
        """The least costs of nodes that nothing was joined to."""
        for (i, j), edge in graph.edges.items():
            self._add(i, j, edge)

    def _add(self, i: int, j: int, edge: Costs) -> None:
        both = self.edges[i][j] + edge if j in self.edges[i] else edge
        self.edges[i][j], self.edges[j][i] = both, both.T

    def eliminate(self, kept: Set[int] = frozenset()) -> None:
        """Take nodes with at most two neighbours away, as long as there are others."""
        waiting = deque(sorted(self.edges))
        while waiting and len(self.edges) > 1:
            node = waiting.popleft()
            around = self.edges.get(node)
            if around is None or len(around) > 2 or node in kept:
                continue
            del self.edges[node]
            for other in around:
                del self.edges[other][node]
            self.eliminated.append((node, around))
            match tuple(around):
                case (i,):
                    self._fold(i, node, around[i])
                case (i, k):
                    self._join(i, node, k, around)
                case ():
                    self.alone += float(self.costs[node].min())
            waiting += sorted(around)

    def loosen(self, kept: Set[int]) -> float:
        """Take away the edge whose costs differ least; leaves its least cost."""
        _, i, k = min(
            (_range(edge), i, k)
            for i, around in self.edges.items()
            for k, edge in around.items()
            if i < k and not {i, k} <= kept
        )
        edge = self.edges[i].pop(k)
        del self.edges[k][i]
        return float(edge.min())

    def settle(self, choice: dict[int, int]) -> None:
        """Add the best choices of nodes that were taken away to the choices of the others."""
        for node, around in reversed(self.eliminated):
            total = self.costs[node].copy()
            for other, edge in around.items():
                total += edge[:, choice[other]]
            choice[node] = int(total.argmin())

    def _fold(self, i: int, node: int, edge: Costs) -> None:
        self.costs[i] += (edge + self.costs[node][:, None]).min(axis=0)

    def _join(self, i: int, node: int, k: int, around: dict[int, Costs]) -> None:
        first = around[i].T + self.costs[node]
        self._add(i, k, (first[:, :, None] + around[k]).min(axis=1))

    def chosen(self) -> dict[int, int]:
        """A choice for what is left: by a beam, then node by node until nothing improves."""
        order = sorted(self.edges)
        beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for at, node in enumerate(order):
            grown = []
            for so_far, choices in beam:
                total = so_far + self.costs[node]
                for before, x in zip(order[:at], choices, strict=True):
                    if before in self.edges[node]:
                        total = total + self.edges[node][before][:, x]
                for y in np.argsort(total, kind="stable")[:BEAM].tolist():
                    grown.append((float(total[y]), (*choices, y)))
            beam = sorted(grown)[:BEAM]
        return self._improved(dict(zip(order, beam[0][1], strict=True)))

    def _improved(self, choice: dict[int, int]) -> dict[int, int]:
        changed = True
        while changed:
            changed = False
            for node, x in choice.items():
                total = self.costs[node].copy()
                for other, edge in self.edges[node].items():
                    total += edge[:, choice[other]]
                # By more than rounding, so that it comes to an end.
                if total.min() < total[x] - ROUNDING * abs(total[x]):
                    choice[node], changed = int(total.argmin()), True
        return choice


def _range(edge: Costs) -> float:
    """By how much costs differ; not at all where nothing is possible."""
    return float(np.ptp(edge)) if edge.max() > edge.min() else 0.0
