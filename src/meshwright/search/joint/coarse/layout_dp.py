"""Layout DP: block coordinate descent over mesh factors, by variable elimination. Enters: costs
that add up (`additive`), weights, layouts to start from. Leaves: better layouts.

Units of the same place in repeated layers, and units that share parameters, are one node: they are
laid out alike. With x_i the layout of node i, k_i units in it, and weights w,

    cost(x) = Σ k_i · (w_compute·(m·passes + update) + w_sums·sums + w_memory·bytes)(x_i)
            + Σ over consumers (m·passes/s + w_sums·sums)(x_i, x_j)               `LayoutDP.cost`
where passes are forward + backward, m counts micro-batches and s is 1, or, if what several units
read alike shall count once, the number of readers. All layouts are too many, so that a step varies
the roles of a few blocks of factors in all nodes at once and keeps the others; its minimum is exact
where eliminations are (`variable_elimination`). Factors of a level that do the same in every node
are interchangeable: of each such class only the first ones are varied (`_turns`). Rounds of steps
go on while they save enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from meshwright.graph.layers import layer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import TensorEdge
from meshwright.sharding.layout import REPLICA
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.solvers.variable_elimination import CostGraph, cheapest

LEAST = 1e-3
"""The share of the cost that a round of steps must save for another one."""

May = Callable[[OpGroup, int, str], bool]
"""Whether a unit may give a factor a role."""

Weigh = Callable[[int, Codes], Costs]
"""Bytes on a device for each layout of a unit."""


class LayoutWeights(NamedTuple):
    """What counts how much; moving activations counts 1."""

    compute: float = 1.0
    """Computing: less than 1 where links are the bottleneck."""
    sums: float = 1.0
    """Gradient sums: less than 1 where they run beside the backward pass."""
    together: bool = False
    """Whether what several units read alike counts once."""
    memory: float = 0.0
    """Nanoseconds for a byte."""


class FactorTotals(NamedTuple):
    """What layouts cost on the whole, in nanoseconds and bytes."""

    chain: float
    """One micro-batch through everything, both passes."""
    sums: float
    update: float
    bytes: float


class LayoutDP:
    """The nodes of a graph, and what their layouts cost."""

    def __init__(
        self,
        costing: AdditiveCosts,
        node: Sequence[int],
        zero: int,
        may: May,
        weigh: Weigh,
        kind: Sequence[int],
    ) -> None:
        """Units that cost and weigh the same are of one kind."""
        self.costing, self.node, self._zero = costing, list(node), zero
        self._may, self._weigh = may, weigh
        count = max(self.node, default=-1) + 1
        self.first = [self.node.index(node) for node in range(count)]
        self._kinds = [Counter[int]() for _ in range(count)]
        self._unit: dict[int, int] = {}
        for unit, at in enumerate(self.node):
            self._kinds[at][kind[unit]] += 1
            self._unit.setdefault(kind[unit], unit)
        self._known: dict[object, Codes] = {}
        self._allowed: dict[int, tuple[frozenset[int], ...]] = {}
        self._joined = Counter(
            (self.node[joint.maker], self.node[joint.reader], joint.kind, joint.shared)
            for joint in costing.joints
        )

    def roles(self, chosen: Codes) -> Codes:
        """The roles of all units, given those of the nodes."""
        return chosen[self.node]

    def better(
        self, chosen: Codes, weights: LayoutWeights, blocks: Sequence[tuple[int, ...]]
    ) -> tuple[Codes, float]:
        """The cheapest layouts that differ only along some blocks, and their cost."""
        choices = [self.choices(node, chosen[node], blocks) for node in range(len(chosen))]
        answer = cheapest(self.graph(choices, weights))
        codes = np.array(
            [layouts[x] for layouts, x in zip(choices, answer.choice, strict=True)], np.int8
        )
        return codes.reshape(chosen.shape), answer.cost

    def legal(self, chosen: Codes) -> bool:
        """Whether all nodes can and may be cut so."""
        return all(
            self.costing.legal(unit, row[None])[0]
            for unit, row in zip(self.first, chosen, strict=True)
        )

    def cost(self, chosen: Codes, weights: LayoutWeights) -> float:
        """What layouts cost."""
        graph = self.graph([row[None] for row in chosen], weights)
        return sum(float(costs[0]) for costs in graph.nodes) + sum(
            float(costs[0, 0]) for costs in graph.edges.values()
        )

    def totals(self, chosen: Codes) -> FactorTotals:
        """What layouts cost, by what it is."""
        chain = sums = update = held = 0.0
        for node, kinds in enumerate(self._kinds):
            for kind, count in kinds.items():
                costs = self.costing.unit(self._unit[kind], chosen[node][None], self._zero)
                chain += count * float(costs.forward[0] + costs.backward[0])
                sums += count * float(costs.sums[0])
                update += count * float(costs.update[0])
                held += count * float(self._weigh(self._unit[kind], chosen[node][None])[0])
        for (i, j, kind, shared), count in self._joined.items():
            consumer = self.costing.consumer(kind, chosen[i][None], chosen[j][None])
            chain += count * float(consumer.forward[0, 0] + consumer.backward[0, 0]) / shared
            sums += count * float(consumer.sums[0, 0])
        return FactorTotals(chain, sums, update, held)

    def descend(self, chosen: Codes, weights: LayoutWeights) -> tuple[Codes, float]:
        """Better layouts, round after round."""
        cost, before = self.cost(chosen, weights), np.inf
        while cost < before * (1 - LEAST):
            before = cost
            for blocks in list(_turns(self.costing, chosen)):
                layouts, now = self.better(chosen, weights, blocks)
                if now < cost:
                    chosen, cost = layouts, now
        return chosen, cost

    def choices(self, node: int, held: Codes, blocks: Sequence[tuple[int, ...]]) -> Codes:
        """The layouts of a node that differ from one along some blocks.

        Nodes that can and may be cut alike get the same object.
        """
        unit = self.first[node]
        roles = self._roles_of(unit)
        type_ = int(self.costing.times.type[unit])
        known = self._known.get(key := (type_, roles, held.tobytes(), tuple(blocks)))
        if known is not None:
            return known
        varied = [block for block in blocks if block]
        allowed = [frozenset.intersection(*(roles[f] for f in block)) for block in varied]
        every = list(product(*map(sorted, allowed)))
        layouts = np.repeat(held[None], len(every), axis=0)
        for n, block in enumerate(varied):
            layouts[:, list(block)] = np.array([combination[n] for combination in every], np.int8)[
                :, None
            ]
        legal = self.costing.legal(unit, layouts)
        legal &= ~(layouts == held).all(axis=1)
        stays = (
            all(int(role) in roles[f] for f, role in enumerate(held) if role >= WHOLE)
            and self.costing.legal(unit, held[None])[0]
        )
        rows = [held[None]] if stays or not legal.any() else []
        self._known[key] = np.concatenate((*rows, layouts[legal]))
        return self._known[key]

    def _roles_of(self, unit: int) -> tuple[frozenset[int], ...]:
        """For each factor the roles that a unit may give it, as numbers."""
        if unit not in self._allowed:
            group = self.costing.units[unit]
            names = {WHOLE: REPLICA} | {n: split.name for n, split in enumerate(group.splits)}
            self._allowed[unit] = tuple(
                frozenset(n for n, name in names.items() if self._may(group, f, name))
                for f in range(len(self.costing.factors))
            )
        return self._allowed[unit]

    def graph(self, choices: Sequence[Codes], weights: LayoutWeights) -> CostGraph:
        """The costs of choices for each node, and of pairs of them; what is alike counts once."""
        known: dict[object, Costs] = {}
        nodes = []
        for layouts, kinds in zip(choices, self._kinds, strict=True):
            key: object = (id(layouts), frozenset(kinds.items()))
            if key not in known:
                known[key] = self._node_costs(layouts, kinds, weights)
            nodes.append(known[key])
        edges: dict[tuple[int, int], Costs] = {}
        for (i, j, kind, shared), count in self._joined.items():
            key = (id(choices[i]), id(choices[j]), kind, shared, count)
            if key not in known:
                known[key] = self._leg_costs(choices[i], choices[j], kind, shared, count, weights)
            moved = known[key]
            if i == j:
                nodes[i] = nodes[i] + np.diagonal(moved)
            else:
                pair, edge = ((i, j), moved) if i < j else ((j, i), moved.T)
                edges[pair] = edges[pair] + edge if pair in edges else edge
        return CostGraph(nodes, edges)

    def _node_costs(self, choices: Codes, kinds: Counter[int], weights: LayoutWeights) -> Costs:
        micro = self.costing.options.micro_batches
        cost = np.zeros(len(choices))
        for kind, count in kinds.items():
            costs = self.costing.unit(self._unit[kind], choices, self._zero)
            cost += (
                count * weights.compute * (micro * (costs.forward + costs.backward) + costs.update)
            )
            cost += count * weights.sums * costs.sums
            if weights.memory:
                cost += count * weights.memory * self._weigh(self._unit[kind], choices)
        return cost

    def _leg_costs(
        self,
        maker: Codes,
        reader: Codes,
        kind: int,
        shared: int,
        count: int,
        weights: LayoutWeights,
    ) -> Costs:
        consumer = self.costing.consumer(kind, maker, reader)
        part = self.costing.options.micro_batches / (shared if weights.together else 1)
        return count * (
            part * (consumer.forward + consumer.backward) + weights.sums * consumer.sums
        )


def nodes(
    graph: OperatorGraph,
    units: Sequence[OpGroup],
    joined: Sequence[TensorEdge],
    apart: Callable[[OpGroup], object],
) -> list[int]:
    """The node of each unit: one for all that are laid out alike; `apart` tells units apart."""
    places, starts = layer_of(graph), _starts(graph)
    number: dict[object, int] = {}
    first: dict[object, int] = {}
    group = list(range(len(units)))
    cuts = [number.setdefault((_cuts(unit), apart(unit)), len(number)) for unit in units]
    for u, unit in enumerate(units):
        if unit.name in places:
            key = (places[unit.name][0], starts[unit.name] - starts[places[unit.name]], cuts[u])
            group[u] = first.setdefault(key, u)
    for bundle in joined:
        for consumer in bundle.consumers if bundle.parameters else ():
            if (
                cuts[consumer.unit] == cuts[bundle.maker]
                and group[consumer.unit] != group[bundle.maker]
            ):
                old, new = sorted((group[consumer.unit], group[bundle.maker]), reverse=True)
                group = [new if other == old else other for other in group]
    return [int(n) for n in np.unique(group, return_inverse=True)[1]]


def _starts(graph: OperatorGraph) -> dict[object, int]:
    """Where each operator is, and where each copy of a repeated layer begins."""
    places = layer_of(graph)
    positions: dict[object, int] = {}
    for position, operator in enumerate(graph.operators):
        positions[operator.name] = position
        if operator.name in places:
            positions.setdefault(places[operator.name], position)
    return positions


def _cuts(unit: OpGroup) -> object:
    """What tells which layouts a unit can have."""
    return tuple((split.name, unit.extents[split.name]) for split in unit.splits)


def _turns(costing: AdditiveCosts, chosen: Codes) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Blocks of factors to vary together: a class, one factor, or one each of two classes."""
    classes: dict[object, list[int]] = {}
    for f, factor in enumerate(costing.factors):
        classes.setdefault((factor, chosen[:, f].tobytes()), []).append(f)
    open_ = [alike for alike in classes.values() if (chosen[:, alike[0]] >= WHOLE).any()]
    for members in open_:
        yield (tuple(members),)
        yield (tuple(members[:1]),)
        if len(members) > 1:
            yield (tuple(members[:1]), tuple(members[1:2]))
    for one, other in combinations(open_, 2):
        yield (tuple(one[:1]), tuple(other[:1]))
        if len(one) + len(other) > 2:
            yield (tuple(one), tuple(other))
