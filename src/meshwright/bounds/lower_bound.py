"""The lower bound on the step time of any plan. Enters: a graph, a cluster, operator prices.
Leaves: a `Bound`.

No plan for the graph on the cluster, whatever its layouts, programs and options (but for the
optimizer), is simulated to be faster. What is added up:
    `degrees`          how long a unit takes, and on which share of the devices, for every way to
                       cut it
    `intervals`        chains of units, and what devices do in a phase
    `network_traffic`  bytes that must cross a network, by how units are cut and copied across it
    `updates`          19 (adam) times the bytes of every parameter, read or written by some device
    `inequalities`     what these make
    `fictitious_play`  the mixture of them whose least value over all ways is largest: with what
                       moves between every two ways (`pairwise_tables`, `pairwise_bound`), or for
                       large graphs without (`unary_bound`)
The bound is the least over the numbers of micro-batches of the largest over the networks.
Memory does not count. What it leaves out: bubbles of pipelines, all but the first message of what
moves, bytes of halos and statistics, and what is told of pairs where these would take too long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.quantities import Seconds
from meshwright.bounds.degrees import DegreeEnumerator
from meshwright.bounds.inequalities import StepInequalities
from meshwright.bounds.intervals import Floats, SyncIntervals, phases
from meshwright.bounds.network_traffic import (
    NetworkTraffic,
    States,
    TensorTransfers,
    networks,
    seats,
    trips,
)
from meshwright.bounds.pairwise_bound import PairwiseGame
from meshwright.bounds.pairwise_tables import choices, elimination_effort, pairwise_transfer_costs
from meshwright.bounds.unary_bound import AlikeOpGroups, UnaryBound
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.memory import Optimizer
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.single_device_step import TRAFFIC
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import TensorEdge, bundles
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.operator_table import OperatorTimes
from meshwright.solvers.fictitious_play import value

ROUNDS = 150

EFFORT = 4.5e7
"""Sums in a round above which units are taken by themselves."""

PARTS = (None, 3, 2, 1)
"""How finely degrees are told apart: the first that does not take too long."""

ANY = Seconds(math.inf)
"""However large."""

MARGIN = 1e-9
"""What is taken off for rounding in sums of floating-point numbers, as a share."""


class Bound(NamedTuple):
    """What no plan can do better than."""

    seconds: Seconds
    reason: str


def lower_bound(
    graph: OperatorGraph,
    cluster: Cluster,
    *,
    operators: OperatorPricer | None = None,
    backend: Backend = NCCL,
    optimizer: Optimizer = "adam",
    micro_batches: Sequence[int] = (1,),
    wanted: Seconds = ANY,
) -> Bound:
    """No plan with one of these numbers of micro-batches is faster.

    Who has no use for more than some seconds says so, and gets any bound that is as large.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4096, i=1024]
    ... parameter w: float32[o=1024, i=1024]
    ... operator y: y: float32[n=4096, o=1024] = linear(x, w)
    ... output y''')
    >>> bound = lower_bound(graph, Cluster.named("flexflow-p100", node=1))
    >>> f"{bound.seconds * 1e3:.2f} ms", bound.reason
    ('0.58 ms', 'devices and gpu, 1 micro-batch')
    """
    groups = units(graph)
    tied = bundles(graph, groups)
    pricer = operators or pricer_of(cluster.device)
    bounds: list[tuple[float, str, int]] = []
    least = wanted * NANO / (1 - MARGIN) + 1
    # What overlaps has lower bounds, and none above the lowest counts.
    for micro in sorted(micro_batches, key=lambda count: (count == 1, count)):
        bound, name = _for_micro_batches(
            groups, tied, cluster, pricer, backend, optimizer, micro, least
        )
        bounds.append((bound, name, micro))
        least = min(least, bound)
    least, name, micro = min(bounds)
    reason = f"devices and {name}, {micro} micro-batch{'es' if micro > 1 else ''}"
    return Bound(Seconds(max(0, math.floor(least * (1 - MARGIN))) / NANO), reason)


def _for_micro_batches(
    groups: tuple[OpGroup, ...],
    tied: tuple[TensorEdge, ...],
    cluster: Cluster,
    pricer: OperatorPricer,
    backend: Backend,
    optimizer: Optimizer,
    micro: int,
    wanted: float,
) -> tuple[float, str]:
    """The larger of the bounds by either network, in nanoseconds, and its name; the first that is
    as large as is wanted.
    """
    times = OperatorTimes(groups, pricer, cluster.devices, micro)
    cutter = DegreeEnumerator(pricer, cluster.devices, micro)
    carried = trips(groups, tied, micro)
    order, edges = phases(groups, carried.reads(), carried.sums(), sequential=micro == 1)
    alike: dict[tuple[int, tuple[States, ...]], list[int]] = {}
    for number, kind in enumerate(times.type.tolist()):
        alike.setdefault((kind, carried.slots[number]), []).append(number)
    ways = {kind: cutter.ways(groups[members[0]]) for (kind, _), members in alike.items()}
    moving = cluster.device.memory_bandwidth * pricer.rates.streaming
    updates = _updates(order, tied, TRAFFIC[optimizer] / moving * NANO / cluster.devices)
    schedule = StepInequalities(order, edges, carried, updates)
    # A transfer is rounded to whole nanoseconds, and may lose half of one.
    rounded = 0.5 * micro * len(carried.bytes)
    bounds: list[tuple[float, str]] = []
    for network in networks(cluster, backend):
        kinds = [
            AlikeOpGroups(
                np.array(members, np.int64),
                ways[kind],
                seats(ways[kind], slots, cluster.devices, network.positions),
            )
            for (kind, slots), members in alike.items()
        ]
        known = max((bound for bound, _ in bounds), default=0.0) + rounded
        least = _value(schedule, kinds, carried, network, micro, wanted + rounded, known)
        bounds.append((least - rounded, network.name))
        if bounds[-1][0] >= wanted:
            break
    return max(bounds)


def _value(
    schedule: StepInequalities,
    kinds: list[AlikeOpGroups],
    carried: TensorTransfers,
    network: NetworkTraffic,
    micro: int,
    wanted: float,
    known: float,
) -> float:
    """The value of the game of pairs, if it does not take too long, and of units alone else; less
    than that if none is above what is known.
    """
    alone = 0.0
    for parts in PARTS:
        pair_choices = choices(kinds, carried, micro, parts)
        if parts is not None and not alone:
            # What is taken together in pairs may tell less than units by themselves.
            own_ways = UnaryBound(schedule, kinds, carried, network, micro)
            alone = value(own_ways, ROUNDS, wanted, known)
            if alone >= wanted:
                return alone
        if elimination_effort(pair_choices, carried) <= EFFORT:
            pairs = PairwiseGame(
                schedule, pair_choices, pairwise_transfer_costs(pair_choices, carried, network)
            )
            return max(alone, value(pairs, ROUNDS, wanted, max(known, alone)))
    return alone


def _updates(order: SyncIntervals, tied: tuple[TensorEdge, ...], rate: float) -> Floats:
    """What updates need that can only run from a phase on, by that phase."""
    updates = np.zeros(order.total)
    phase = {
        unit: number
        for unit, number, backward in zip(
            order.unit.tolist(), order.number, order.backward, strict=True
        )
        if backward
    }
    for bundle in tied:
        trained = [s for s, source in enumerate(bundle.sources) if source.trained]
        if bundle.parameters and trained and order.total:
            readers = [consumer.unit for consumer in bundle.consumers if consumer.tensor in trained]
            latest = max((phase[unit] for unit in readers if unit in phase), default=0)
            updates[latest] += max(0.0, sum(bundle.sources[s].bytes for s in trained) * rate - 0.5)
    return updates
