"""Additive memory estimate: bytes of an op group on a device, for each layout. Enters: costs of a
graph, whose options count. Leaves: what stands all the time, and what is kept for the backward pass
of a micro-batch.

An estimate that adds up: what passes, and when, is left out, and a tensor that several units keep
counts at the first. `simulate` tells the truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.once import once
from meshwright.cost.memory import STATES, UPDATE
from meshwright.graph.counts import view_bases
from meshwright.graph.families import family_of
from meshwright.graph.layers import recomputed_layers
from meshwright.graph.operator_graph import ITEM_BYTES, OperatorGraph
from meshwright.lower.script import WHOLLY_SHARDED
from meshwright.plan.options import Options
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL
from meshwright.sharding.unit import Member
from meshwright.sharding.units import units
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs


class Bytes(NamedTuple):
    """Of each layout of a unit."""

    standing: Costs
    """Parameters, the most of their gradients, the optimizer's state."""
    kept: Costs
    """For the backward pass of one micro-batch."""


class _Keeps(NamedTuple):
    """What an operator keeps for the backward pass."""

    tensors: tuple[tuple[int, float], ...]
    """Of its inputs and then outputs, by number, with the bytes kept for each element."""
    again: bool
    """Whether it runs again, and so keeps nothing besides."""


class MemoryWeigher:
    """What the units of a graph take with some options."""

    def __init__(self, costing: AdditiveCosts, options: Options) -> None:
        self._costing, self._zero = costing, options.zero
        self._keeps = _keeping(costing.graph, options.recompute, options.recompute_layers)
        numbers: dict[object, int] = {}
        self.kind = [
            numbers.setdefault((kind, id(keeps)), len(numbers))
            for kind, keeps in zip(costing.kind, self._keeps, strict=True)
        ]
        """For each unit the number of its kind: of those that cost and take the same."""
        self._known: dict[object, Bytes] = {}

    def __call__(self, number: int, roles: Codes) -> Bytes:
        """What each layout of a unit takes."""
        key = (self.kind[number], roles.tobytes())
        if key not in self._known:
            self._known[key] = Bytes(self._standing(number, roles), self._kept(number, roles))
        return self._known[key]

    def _standing(self, number: int, roles: Codes) -> Costs:
        options, sizes = self._costing.options, self._costing.prices.table.sizes
        total = np.zeros(len(roles))
        for source, consumer, _ in self._costing.kept.get(number, ()):
            ways, copies = np.ones(len(roles)), np.ones(len(roles))
            for split, state in enumerate(source.boundary.forward):
                degree = np.where(roles == split, sizes, 1).prod(axis=1)
                ways = ways * (degree if state >= 0 else 1)
                summed = (
                    consumer.boundary.backward is not None
                    and consumer.boundary.backward[split] == PARTIAL
                )
                along = (roles == split) & self._costing.shards
                copies = copies * (np.where(along, sizes, 1).prod(axis=1) if summed else 1)
            share = source.bytes / ways
            wide = share * max(1.0, 4 / ITEM_BYTES[self._costing.graph.specs[source.name].dtype])
            numbers, copy = (wide, wide) if options.mixed else (share, 0.0)
            sharded = share / copies if source.trained else share
            total += sharded if self._zero == WHOLLY_SHARDED else share
            if source.trained:
                # Micro-batches that are not summed one by one add gradients up whole.
                adds = options.micro_batches > options.sums
                total += sharded if self._zero and not adds else share
                updated = (STATES[options.optimizer] + UPDATE[options.optimizer]) * numbers + copy
                total += updated / (copies if self._zero >= 1 else 1)
        return total

    def _kept(self, number: int, roles: Codes) -> Costs:
        unit, sizes = self._costing.units[number], self._costing.prices.table.sizes
        micro = self._costing.options.micro_batches
        if not unit.splits:
            return np.full(len(roles), self._kept_of(number, {}))
        degrees = np.stack(
            [
                np.where(roles == s, sizes, 1).prod(axis=1) * unit.micro_ways(s, micro)
                for s in range(len(unit.splits))
            ],
            axis=1,
        )
        rows, which = np.unique(degrees, axis=0, return_inverse=True)
        kept = np.array([self._kept_of(number, dict(enumerate(row.tolist()))) for row in rows])
        return kept[which.reshape(-1)]

    def _kept_of(self, number: int, degrees: dict[int, int]) -> float:
        total = 0.0
        for member, keeps in zip(
            self._costing.units[number].members, self._keeps[number], strict=True
        ):
            if not any(member.wanted):
                continue
            piece = member.piece(degrees)
            specs = (*piece.inputs, *piece.outputs)
            kept = [(specs[place], each) for place, each in keeps.tensors]
            total += sum(spec.elements * each for spec, each in kept if spec is not None)
            if not keeps.again:
                total += family_of(piece).saved(piece, member.wanted).extra
        return total


@once
def _keeping(graph: OperatorGraph, recompute: bool, count: int) -> tuple[tuple[_Keeps, ...], ...]:
    """What the members of each unit keep of what no unit before keeps, if layers run again or not;
    units that keep the same have the same object.
    """
    operators, roots, specs = graph.named, view_bases(graph), graph.specs
    layers = recomputed_layers(graph, count) if recompute else {}
    origins = {
        t.name: layers.get(operator.name) for operator in graph.operators for t in operator.outputs
    }
    taken = set[str]()
    alike: dict[tuple[_Keeps, ...], tuple[_Keeps, ...]] = {}

    def keeps(member: Member) -> _Keeps:
        operator = operators[member.operator]
        layer = layers.get(operator.name)
        saved = family_of(member.call).saved(member.call, member.wanted)
        names = [*operator.inputs, *(tensor.name for tensor in operator.outputs)]
        places = [*saved.inputs, *(len(operator.inputs) + i for i in saved.outputs)]
        kept = []
        for place in places if any(member.wanted) else ():
            name = names[place]
            root = None if name is None else roots[name]
            if name is None or root is None or root in taken or root not in origins:
                continue
            if layer is None or origins[root] != layer:
                taken.add(root)
                kept.append((place, specs[root].bytes / max(1, specs[name].elements)))
        return _Keeps(tuple(kept), layer is not None)

    every = [tuple(map(keeps, unit.members)) for unit in units(graph)]
    return tuple(alike.setdefault(unit_keeps, unit_keeps) for unit_keeps in every)
