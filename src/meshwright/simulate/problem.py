"""A graph on a cluster, ready to be laid out again and again. Enters: a graph, a cluster, options,
prices. Leaves: for the roles of all units a `TaskGraph`.

The arrays are made once; `lay` writes roles into them and fills what the tables of prices and times
lack. Given the layouts of a pipeline, each stage works through its micro-batches in the order of
its schedule. Factors along which some operator may sit at one coordinate tell devices apart
(`apart`); all others are simulated by one representative. What searches may choose from
(`allowed`) is said here too; layouts that it excludes cannot be laid if a degree is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.graph.layers import layer_of
from meshwright.graph.model import OperatorGraph
from meshwright.parallelize.allowed import ANYTHING, Allowed
from meshwright.parallelize.layout import IDLE, REPLICA, Layout, factors
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import WHOLE, at, coordinate_of, is_at
from meshwright.parallelize.units import Unit, units
from meshwright.plan.model import Options, Plan
from meshwright.price.operator import OperatorPricer
from meshwright.price.step import Pricer
from meshwright.price.training import TRAFFIC
from meshwright.simulate.build import skeleton
from meshwright.simulate.bundles import Bundle, Leg, bucketed, bundles
from meshwright.simulate.carry import FOUND, ILLEGAL, NO_TIME, Work, work
from meshwright.simulate.lay import Rates, lay_bundle, lay_unit
from meshwright.simulate.places import places
from meshwright.simulate.prices import NANO, Prices
from meshwright.simulate.stages import chained
from meshwright.simulate.tasks import Flags
from meshwright.simulate.times import MOST_SPLITS, Times


class Problem:
    """The arrays of one graph on one cluster, and the layout that they hold."""

    def __init__(
        self,
        graph: OperatorGraph,
        cluster: Cluster,
        options: Options | None = None,
        *,
        apart: Sequence[bool] | None = None,
        pipeline: Sequence[Layout] = (),
        prices: Prices | None = None,
        operators: OperatorPricer | None = None,
        allowed: Allowed = ANYTHING,
    ) -> None:
        self.graph, self.cluster, self.allowed = graph, cluster, allowed
        self.options = options or Options()
        self.factors = factors(cluster)
        self.units = units(graph)
        self.apart = tuple(apart) if apart is not None else (True,) * len(self.factors)
        self.prices = prices or Prices(Pricer(cluster, algorithm="best"))
        self.operators = operators or OperatorPricer(cluster.device)
        micro = self.options.micro_batches
        found = bucketed(bundles(graph, self.units), self.options.bucket)
        self.bundles = tuple(_micro(own, self.units, micro) for own in found)
        self.times = Times(self.units, self.operators, cluster.devices, micro, allowed)
        self.places = places(cluster, self.apart)
        for unit in self.units:
            if len(unit.splits) > MOST_SPLITS:
                raise InputError(
                    f"operator {unit.name!r} can be split in {len(unit.splits)} ways",
                    f"at most {MOST_SPLITS} are handled",
                )
        edges = chained(self.units, pipeline, self.bundles, self.options) if pipeline else ()
        self.bones, self.tasks, self.labels = skeleton(
            self.units, self.bundles, self.places, len(self.prices.kinds), micro, edges
        )
        self.room: Work = work(len(self.factors), len(self.prices.kinds), len(self.bundles))
        rates = self.operators.rates
        moving = cluster.device.memory_bandwidth * rates.streaming
        traffic = TRAFFIC[self.options.optimizer]
        self.rates = Rates(
            update=traffic / moving * NANO,
            launch=rates.launch * NANO,
            zero=self.options.zero,
            again=_again(graph, self.units, self.options.recompute),
            buckets=bool(self.options.bucket),
        )
        self.roles: Codes = np.full((len(self.units), len(self.factors)), WHOLE, np.int8)

    def lay(self, roles: Codes) -> None:
        """Write the roles of all units into the task graph."""
        self.roles[:] = roles
        for unit in range(len(self.units)):
            while (status := self._lay_unit(unit)) != FOUND:
                self.supply(status)
        for bundle in range(len(self.bundles)):
            while (status := self._lay_bundle(bundle)) != FOUND:
                self.supply(status)

    def supply(self, status: int) -> None:
        """Fill the row of a table that compiled code found empty."""
        assert status != ILLEGAL, "layouts are checked before they are written"
        _, first, inside, every = map(int, self.room.missing)
        if status == NO_TIME:
            self.times.fill(first)
        else:
            self.prices.fill(first, inside, every)

    def codes(self, layouts: Sequence[Layout]) -> Codes:
        """The roles of all units as numbers."""
        return np.array(
            [_codes(unit, layout) for unit, layout in zip(self.units, layouts, strict=True)],
            np.int8,
        ).reshape(len(self.units), len(self.factors))

    def layouts(self, roles: Codes) -> tuple[Layout, ...]:
        """The layouts that roles stand for."""
        return tuple(_layout(unit, own) for unit, own in zip(self.units, roles, strict=True))

    def plan(self, origin: str, roles: Codes) -> Plan:
        """The plan that roles stand for."""
        return Plan.of(origin, self.graph, self.cluster, self.layouts(roles), self.options)

    @property
    def moved(self) -> float:
        """Bytes that leave a device in a step, on the whole machine."""
        return float(self.room.moved.sum())

    def _lay_unit(self, unit: int) -> int:
        return lay_unit(
            self.bones,
            self.tasks,
            self.prices.table,
            self.times.table,
            self.rates,
            self.places.radix,
            int(self.times.type[unit]),
            unit,
            self.roles[unit],
            self.room,
        )

    def _lay_bundle(self, bundle: int) -> int:
        return lay_bundle(
            self.bones,
            self.tasks,
            self.prices.table,
            self.rates,
            self.places.radix,
            bundle,
            self.roles,
            self.room,
        )


def _codes(unit: Unit, layout: Layout) -> list[int]:
    names = {split.name: number for number, split in enumerate(unit.splits)}
    return [
        at(int(role[1:])) if role.startswith(IDLE) else WHOLE if role == REPLICA else names[role]
        for role in layout.roles
    ]


def _layout(unit: Unit, roles: Codes) -> Layout:
    return Layout(
        tuple(
            unit.splits[role].name
            if role >= 0
            else f"{IDLE}{coordinate_of(role)}"
            if is_at(role)
            else REPLICA
            for role in map(int, roles)
        )
    )


def _micro(bundle: Bundle, own: tuple[Unit, ...], micro_batches: int) -> Bundle:
    """A bundle as one micro-batch carries it."""
    if micro_batches == 1 or bundle.parameters:
        return bundle
    maker = own[bundle.maker]
    cut = [n for n in range(len(maker.splits)) if maker.micro_ways(n, micro_batches) > 1]
    shared = [any(s.port.there[n] >= 0 for n in cut) for s in bundle.sources]
    return msgspec.structs.replace(
        bundle,
        sources=tuple(
            msgspec.structs.replace(source, bytes=source.bytes // micro_batches) if part else source
            for source, part in zip(bundle.sources, shared, strict=True)
        ),
        legs=tuple(
            _micro_leg(leg, micro_batches) if shared[leg.tensor] else leg for leg in bundle.legs
        ),
    )


def _micro_leg(leg: Leg, micro_batches: int) -> Leg:
    """Halos have rows of one micro-batch; statistics are as many numbers for each."""
    halo = tuple(rows // micro_batches for rows in leg.port.halo)
    return msgspec.structs.replace(leg, port=msgspec.structs.replace(leg.port, halo=halo))


def _again(graph: OperatorGraph, own: tuple[Unit, ...], recompute: bool) -> Flags:
    """Whether each unit lies in a repeated layer that runs again."""
    repeated = layer_of(graph) if recompute else {}
    return np.array([unit.name in repeated for unit in own], np.bool_)
