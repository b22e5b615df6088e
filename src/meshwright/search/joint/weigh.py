"""Bytes that a unit takes on a device, layout by layout. Enters: costs of a graph, whose options
count. Leaves: what stands all the time, and what is kept for the backward pass of a micro-batch.

An estimate that adds up: what passes, and when, is left out, and a tensor that several units keep
counts at the first. `simulate` tells the truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.graph.counts import view_roots
from meshwright.graph.families import family_of
from meshwright.graph.layers import layer_of
from meshwright.graph.model import ITEM_BYTES
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import PARTIAL
from meshwright.price.memory import STATES, UPDATE
from meshwright.search.additive import Costing, Costs


class Bytes(NamedTuple):
    """Of each layout of a unit."""

    standing: Costs
    """Parameters, their gradients, the optimizer's state."""
    kept: Costs
    """For the backward pass of one micro-batch."""


class Scales:
    """What the units of a graph take with some options."""

    def __init__(self, costing: Costing, zero: int, recompute: bool) -> None:
        self._costing, self._zero = costing, zero
        self._operators = {own.name: own for own in costing.graph.operators}
        self._roots = view_roots(costing.graph)
        self._layers = layer_of(costing.graph) if recompute else {}
        self._made = {
            t.name: self._layers.get(own.name)
            for own in costing.graph.operators
            for t in own.outputs
        }
        """For each tensor the layer that makes it and runs again."""
        self._keeper: dict[str, int] = {}
        """For each tensor that is kept the first unit that keeps it."""
        for number, unit in enumerate(costing.units):
            for member in unit.members:
                own = self._operators[member.operator]
                saved = family_of(member.call.kind).saved(member.call, member.wanted)
                names = [own.inputs[i] for i in saved.inputs]
                names += [own.outputs[i].name for i in saved.outputs]
                for name in names if any(member.wanted) else ():
                    if name is not None and self._roots[name] in self._made:
                        self._keeper.setdefault(self._roots[name], number)
        self._known: dict[object, Bytes] = {}

    def __call__(self, number: int, roles: Codes) -> Bytes:
        """What each layout of a unit takes."""
        again = self._costing.units[number].name in self._layers
        key = (self._costing.kind[number], again, roles.tobytes())
        if key not in self._known:
            self._known[key] = Bytes(self._standing(number, roles), self._kept(number, roles))
        return self._known[key]

    def _standing(self, number: int, roles: Codes) -> Costs:
        options, sizes = self._costing.options, self._costing.prices.table.sizes
        total = np.zeros(len(roles))
        for source, leg, _ in self._costing.kept.get(number, ()):
            ways, copies = np.ones(len(roles)), np.ones(len(roles))
            for split, state in enumerate(source.port.there):
                degree = np.where(roles == split, sizes, 1).prod(axis=1)
                ways = ways * (degree if state >= 0 else 1)
                summed = leg.port.back is not None and leg.port.back[split] == PARTIAL
                copies = copies * (degree if summed else 1)
            own = source.bytes / ways
            wide = own * max(1.0, 4 / ITEM_BYTES[self._costing.graph.specs[source.name].dtype])
            numbers, copy = (wide, wide) if options.mixed else (own, 0.0)
            total += own / (copies if self._zero == 3 else 1)
            if source.trained:
                total += own / (copies if self._zero >= 2 else 1)
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
        found = np.array([self._kept_of(number, dict(enumerate(row.tolist()))) for row in rows])
        return found[which.reshape(-1)]

    def _kept_of(self, number: int, degrees: dict[int, int]) -> float:
        unit, specs = self._costing.units[number], self._costing.graph.specs
        total, seen = 0.0, set[str]()
        for member in unit.members:
            if not any(member.wanted):
                continue
            own, piece = self._operators[member.operator], member.piece(degrees)
            saved = family_of(piece.kind).saved(piece, member.wanted)
            layer = self._layers.get(own.name)
            total += 0 if layer else saved.extra
            pairs = [(own.inputs[i], piece.inputs[i]) for i in saved.inputs]
            pairs += [(own.outputs[i].name, piece.outputs[i]) for i in saved.outputs]
            for name, spec in pairs:
                if name is None or spec is None:
                    continue
                root = self._roots[name]
                inside = layer is not None and self._made.get(root) == layer
                if self._keeper.get(root) == number and root not in seen and not inside:
                    seen.add(root)
                    total += specs[root].bytes * spec.elements / max(1, specs[name].elements)
        return total
