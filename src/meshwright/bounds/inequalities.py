"""Valid inequalities on the step time: critical chains, device load, network load. Enters: phases,
updates, what tasks and trips take. Leaves: the largest of the inequalities, and how much everything
counts in it.

For any number q of a phase (`intervals`),
    step >= sum over p < q of max(chain_p, load_p) + R_q                                         (1)
where R_q is what a resource is needed for, on average over its instances, by all that can only run
from phase q on: devices, by the loads of the phases from q on and by updates; or the network, by
what has to cross it (`network_traffic`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.bounds.intervals import IntervalEdges, SyncIntervals
from meshwright.bounds.network_traffic import TensorTransfers

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class InequalityLoads(NamedTuple):
    """What everything takes, in nanoseconds."""

    duration: Floats
    """[tasks]"""
    work: Floats
    """[tasks] the duration times the share of devices."""
    moved: Floats
    """[trips] for which a micro-batch's tensor holds the network."""
    waited: Floats
    """[trips] for which its reader waits."""
    last: Floats
    """[trips] for which the end of the step waits, once what it reads is made."""

    def mixed(self, other: InequalityLoads, part: float) -> InequalityLoads:
        """A weighted mean."""
        return InequalityLoads(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class LoadShares(NamedTuple):
    """How much everything counts."""

    chain: Floats
    """[tasks] of durations"""
    load: Floats
    """[tasks] of work"""
    update: Floats
    """[phases] of updates that can only run from a phase on"""
    moved: Floats
    """[trips]"""
    waited: Floats
    """[trips]"""
    last: Floats
    """[trips]"""

    def mixed(self, other: LoadShares, part: float) -> LoadShares:
        """A weighted mean."""
        return LoadShares(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class StepInequalities:
    """The inequalities of one graph."""

    def __init__(
        self, phases: SyncIntervals, edges: IntervalEdges, trips: TensorTransfers, updates: Floats
    ) -> None:
        self.phases, self.updates = phases, updates
        self._edges, self._times = edges, trips.times
        units = len(trips.slots)
        self.forward, self.backward = (np.full(units, -1, np.int64) for _ in range(2))
        """[units] tasks, or -1"""
        for task, (unit, backward) in enumerate(zip(phases.unit, phases.backward, strict=True)):
            if unit >= 0:
                (self.backward if backward else self.forward)[unit] = task
        starts = [
            (self.backward if backward else self.forward)[unit]
            for (unit, _), backward in zip(trips.units, trips.backward, strict=True)
        ]
        self._begins = np.array([phases.number[t] if t >= 0 else 0 for t in starts], np.int64)
        """[trips] the phase in which it can begin."""

    def worst(self, spent: InequalityLoads) -> tuple[float, LoadShares]:
        """The largest of the sums (1), and what counts in it."""
        phases, count, edges = self.phases, self.phases.total, self._edges
        between = np.where(
            edges.last,
            np.append(spent.last, 0.0)[edges.trip],
            np.append(spent.waited, 0.0)[edges.trip],
        )
        chain = phases.longest(spent.duration, between)
        load = np.bincount(phases.number, spent.work, count)
        early = np.concatenate(([0.0], np.cumsum(np.maximum(chain.length, load))))
        computing = early + _suffixes(load + self.updates)
        moving = early + _suffixes(np.bincount(self._begins, spent.moved * self._times, count))
        q = int(np.maximum(computing, moving).argmax())
        crosses = bool(moving[q] > computing[q])
        late = np.arange(count) >= q
        chained = ~late & (chain.length >= load)
        edge_phase = np.where(
            phases.leaves, phases.number[phases.source], phases.number[phases.target]
        )
        on_chain = chain.edge & chained[edge_phase] & (edges.trip >= 0)
        waited, last = (np.zeros(len(self._times)) for _ in range(2))
        np.add.at(waited, edges.trip[on_chain & ~edges.last], 1.0)
        np.add.at(last, edges.trip[on_chain & edges.last], 1.0)
        shares = LoadShares(
            (chained[phases.number] & chain.task).astype(np.float64),
            (~chained & ~(late & crosses))[phases.number].astype(np.float64),
            (late & (not crosses)).astype(np.float64),
            self._times * ((self._begins >= q) & crosses),
            waited,
            last,
        )
        return float(max(computing[q], moving[q])), shares


def _suffixes(values: NDArray[np.number]) -> Floats:
    """The sums of the values from each place on, and 0."""
    return np.concatenate((np.cumsum(values[::-1])[::-1], [0.0]))
