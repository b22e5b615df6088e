"""Pipeline partitioning of op groups into stages (min-max chain partition). Enters: costs of a
graph, layouts of its nodes. Leaves: a `Staging`.

What units and readings cost is asked once for all of a node and kind: layers repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.base.interning import grouped
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import at
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.solvers.chain_partition import Staging, staged


class PipelinePartitions:
    """The units of one graph with one number of micro-batches."""

    def __init__(self, costing: AdditiveCosts, node: Sequence[int]) -> None:
        """Enter besides: the node of each unit."""
        self._costing = costing
        self._units, self._unit = grouped(zip(costing.kind, node, strict=True))
        self._legs, self._leg = grouped(
            (joint.kind, node[joint.maker], node[joint.reader]) for joint in costing.joints
        )
        self._first = np.unique(self._unit, return_index=True)[1].tolist()
        """Of each kind and node the first unit."""
        self._maker = np.array([joint.maker for joint in costing.joints], np.int64)
        self._last = np.zeros(len(costing.units), np.int64)
        """[units] the last reader of what it makes."""
        for edge in costing.joints:
            self._last[edge.maker] = max(self._last[edge.maker], edge.reader)
        self._known: dict[object, Staging] = {}

    def staged(self, chosen: Codes, factors: tuple[int, ...], stages: int) -> Staging:
        """Where it is cut if nodes lie so beside their stages, which sit along some factors."""
        key = (chosen.tobytes(), factors, stages)
        if key not in self._known:
            micro = self._costing.options.micro_batches
            crossing = self._crossing(chosen, factors[-1])
            self._known[key] = staged(self._loads(chosen), crossing, stages, micro)
        return self._known[key]

    def _crossing(self, chosen: Codes, factor: int) -> Costs:
        """Nanoseconds of what a micro-batch sends over the cut before each unit, and back.

        A tensor counts at all cuts between its maker and its last reader, once.
        """
        beyond = chosen.copy()
        beyond[:, factor] = at(1)
        more = np.zeros(len(self._legs))
        for n, (kind, maker, reader) in enumerate(self._legs):
            near, far = (
                self._costing.consumer(kind, chosen[maker][None], codes[reader][None])
                for codes in (chosen, beyond)
            )
            more[n] = (far.forward + far.backward - near.forward - near.backward)[0, 0]
        price = np.zeros(len(self._last))
        np.maximum.at(price, self._maker, more[self._leg])
        change = np.zeros(len(price) + 2)
        change[1:-1] = price
        np.subtract.at(change, self._last + 1, price)
        return np.maximum(np.cumsum(change)[:-1], 0.0)

    def _loads(self, chosen: Codes) -> Costs:
        """Nanoseconds of each unit on one micro-batch, both passes."""
        loads = np.zeros(len(self._units))
        for n, ((_, node), unit) in enumerate(zip(self._units, self._first, strict=True)):
            costs = self._costing.unit(unit, chosen[node][None])
            loads[n] = round(float(costs.forward[0] + costs.backward[0]))
        return loads[self._unit]
