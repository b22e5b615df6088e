"""Operator placement (the space of REINFORCE and ColocRL) after HEFT (Topcuoglu et al. 2002).
Enters: a graph, a cluster. Leaves: a `Plan`, made by a list scheduler (after HEFT).

With t_u the time of both passes of unit u, and c_uv(a, b) that of what v reads of u, sent from
device a to b, there and back,
    rank_u      = t_u + max over readers v of (c_uv(neighbours) + rank_v)                `_ranked`
    finish_u(d) = t_u + max(free_d, max over makers p of (finish_p + c_pu(device_p, d)))  `_finish`
and u keeps its device busy for the update of its weights as well, for which nobody waits. Units
in the order of falling rank each go where they finish first. Units that share a weight stay
together, and so do a unit that reads nothing and its first reader, if sending takes longer than
computing. Devices are taken into use in order, since what is near is near by number. The schedule
is made for one device, for one machine and for all, and the shortest is kept, so that it is never
longer than on one device. Contention for links is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from meshwright.base.integers import to_digits
from meshwright.base.quantities import Seconds
from meshwright.baselines.roles import intra_machine_factors, require_few, seat
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.single_device_step import TRAFFIC
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.reshard import SEND
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices


class Schedule(NamedTuple):
    """The device of each unit, and when the last is done."""

    devices: tuple[int, ...]
    seconds: Seconds


def operator_placement(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Each unit where it finishes first."""
    require_few(cluster)
    mesh_factors = factors(cluster)
    devices = scheduled(graph, cluster).devices
    layouts = [Layout(seat(device, mesh_factors)) for device in devices]
    return Plan.of("operator placement", graph, cluster, layouts)


def scheduled(graph: OperatorGraph, cluster: Cluster) -> Schedule:
    """The best schedule on one device, on one machine or on all."""
    work = _Work(graph, cluster)
    machine = 1
    for factor in intra_machine_factors(cluster):
        machine *= factors(cluster)[factor].size
    sizes = sorted({1, machine, cluster.devices})
    return min((work.on(devices) for devices in sizes), key=lambda schedule: schedule.seconds)


class _Work:
    """Times, edges and groups of a graph's units."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster) -> None:
        parts, pricer = units(graph), pricer_of(cluster.device)
        self._distance = _Distance(cluster)
        self._times = [_seconds(unit, pricer) for unit in parts]
        self._updates = _updates(graph, parts, cluster)
        self._makers = _makers(parts)
        self._groups = self._grouped(graph, parts)
        self._ranks = self._ranked()

    def on(self, devices: int) -> Schedule:
        """The schedule on the first so many devices."""
        count = len(self._times)
        home: dict[int, int] = {}
        free: list[float] = [0.0]
        finish, device = [0.0] * count, [0] * count
        for unit in sorted(range(count), key=lambda unit: (-self._ranks[unit], unit)):
            group = self._groups[unit]
            tried = [home[group]] if group in home else range(len(free))
            ends = [(self._finish(unit, d, free[d], finish, device), d) for d in tried]
            finish[unit], device[unit] = min(ends)
            home[group] = device[unit]
            free[device[unit]] = finish[unit] + self._updates[unit]
            if len(free) < devices and device[unit] == len(free) - 1:
                free.append(0.0)
        return Schedule(tuple(device), Seconds(max(free)))

    def _finish(
        self, unit: int, at: int, free: float, finish: Sequence[float], device: Sequence[int]
    ) -> float:
        ready = free
        for maker, size in self._makers[unit].items():
            ready = max(ready, finish[maker] + self._distance.seconds(device[maker], at, size))
        return ready + self._times[unit]

    def _ranked(self) -> list[float]:
        ranks = [0.0] * len(self._times)
        for unit in reversed(range(len(ranks))):
            ranks[unit] += self._times[unit]
            for maker, size in self._makers[unit].items():
                ranks[maker] = max(ranks[maker], ranks[unit] + self._distance.least(size))
        return ranks

    def _grouped(self, graph: OperatorGraph, parts: Sequence[OpGroup]) -> list[int]:
        """For each unit the first one that it must stay with."""
        first: dict[str, int] = {}
        group = list(range(len(parts)))
        weights = {parameter.tensor.name for parameter in graph.parameters}
        for number, unit in enumerate(parts):
            for boundary in unit.inputs:
                if boundary.tensor in weights:
                    _join(group, first.setdefault(boundary.tensor, number), number)
            for maker, size in self._makers[number].items():
                alone = not self._makers[maker] and group[maker] == maker
                if alone and self._times[maker] <= self._distance.least(size):
                    _join(group, maker, number)
        return group


class _Distance:
    """Seconds to send bytes from one device to another."""

    def __init__(self, cluster: Cluster) -> None:
        self._own = factors(cluster)
        self._radices = [factor.size for factor in self._own]
        self._prices = CollectivePrices(Pricer(cluster, algorithm="best"), programs=False)
        self._level = cache(self._level_between)
        self._sent = cache(self._send)

    def seconds(self, one: int, other: int, size: int) -> float:
        """The time between two devices; none on the same."""
        return 0.0 if one == other else self._sent(self._level(one, other), size)

    def least(self, size: int) -> float:
        """The time between neighbours; none if there is but one device."""
        return self._sent(self._own[-1].level, size) if self._own else 0.0

    def _level_between(self, one: int, other: int) -> int:
        apart = zip(
            self._own, to_digits(one, self._radices), to_digits(other, self._radices), strict=True
        )
        return next(factor.level for factor, a, b in apart if a != b)

    def _send(self, level: int, size: int) -> float:
        inside = sum(1 << i for i, factor in enumerate(self._own) if factor.level == level)
        way = self._prices.way(SEND, inside, 0, float(size))
        return way.fixed + way.slope * size


def _seconds(unit: OpGroup, pricer: OperatorPricer) -> float:
    prices = [pricer.price(member.call, member.wanted) for member in unit.members]
    return sum(price.forward.seconds + price.backward.seconds for price in prices)


def _updates(graph: OperatorGraph, parts: Sequence[OpGroup], cluster: Cluster) -> list[float]:
    """For each unit the seconds of updating the weights that it is the first to read."""
    trained = {p.tensor.name: p.tensor.spec.bytes for p in graph.parameters if p.trainable}
    rate = (
        cluster.device.memory_bandwidth
        * cluster.device.reached.streaming
        / TRAFFIC[Options().optimizer]
    )
    seconds = []
    for unit in parts:
        weights = {boundary.tensor for boundary in unit.inputs} & trained.keys()
        seconds.append(sum(trained.pop(name) for name in sorted(weights)) / rate)
    return seconds


def _makers(parts: Sequence[OpGroup]) -> list[dict[int, int]]:
    """For each unit the bytes that it reads of others, twice what has a gradient to return."""
    maker = {
        boundary.tensor: number for number, unit in enumerate(parts) for boundary in unit.outputs
    }
    reads: list[dict[int, int]] = []
    for unit in parts:
        sizes: dict[int, int] = {}
        for name, boundary in {boundary.tensor: boundary for boundary in unit.inputs}.items():
            if name in maker:
                size = boundary.bytes * (1 if boundary.backward is None else 2)
                sizes[maker[name]] = sizes.get(maker[name], 0) + size
        reads.append(sizes)
    return reads


def _join(group: list[int], one: int, other: int) -> None:
    """Make two groups one, named by their first unit."""
    old, new = sorted((group[one], group[other]), reverse=True)
    for number, root in enumerate(group):
        if root == old:
            group[number] = new
