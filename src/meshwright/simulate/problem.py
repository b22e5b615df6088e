"""The step model: a graph on a cluster, simulated for one layout after the other. Enters: a graph,
a cluster, options, prices. Leaves: for the roles of all units a `TaskGraph`.

The arrays are made once; `lay` writes roles into them and fills what the tables of prices and times
lack. Given the layouts of a pipeline, each stage works through its micro-batches in the order of
its schedule. Factors along which some operator may sit at one coordinate tell devices apart
(`apart`); all others are simulated by one representative. What searches may choose from
(`allowed`) is said here too; layouts that it excludes cannot be laid if a degree is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.single_device_step import TRAFFIC
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.script import WHOLLY_SHARDED
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.allowed import ANYTHING, Allowed
from meshwright.sharding.layout import IDLE, REPLICA, Layout, MeshFactor, factors, sharding
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, at, coordinate_of, is_at
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.assign import AssignmentRates
from meshwright.simulate.build_template import skeleton
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.simulate.edge_collectives import ILLEGAL, NO_TIME, Workspace, work
from meshwright.simulate.edges import joined
from meshwright.simulate.host import host_launches
from meshwright.simulate.operator_table import MOST_SPLITS, OperatorTimes
from meshwright.simulate.resources import places
from meshwright.simulate.schedule_edges import Label, ahead, chained
from meshwright.simulate.task_template import TaskLabels, labels_of
from meshwright.simulate.tasks import Flags
from meshwright.simulate.whole import assign_all


class StepModel:
    """The arrays of one graph on one cluster, and the layout that they hold."""

    def __init__(
        self,
        graph: OperatorGraph,
        cluster: Cluster,
        options: Options | None = None,
        *,
        apart: Sequence[bool] | None = None,
        pipeline: Sequence[Layout] = (),
        prices: CollectivePrices | None = None,
        operators: OperatorPricer | None = None,
        allowed: Allowed = ANYTHING,
    ) -> None:
        self.graph, self.cluster, self.allowed = graph, cluster, allowed
        self.options = options or Options()
        self.factors = factors(cluster)
        self.units = units(graph)
        self.apart = tuple(apart) if apart is not None else (True,) * len(self.factors)
        self.prices = prices or CollectivePrices(Pricer(cluster, algorithm="best"))
        self.operators = operators or pricer_of(cluster.device)
        micro = self.options.micro_batches
        self.joined = joined(graph, micro, self.options.bucket)
        self.bundles = self.joined.bundles
        self.times = OperatorTimes(self.units, self.operators, cluster.devices, micro, allowed)
        self.places = places(cluster, self.apart)
        for unit in self.units:
            if len(unit.splits) > MOST_SPLITS:
                raise InputError(
                    f"operator {unit.name!r} can be split in {len(unit.splits)} ways",
                    f"make it of simpler operators, each with at most {MOST_SPLITS}",
                )
        edges = chained(self.units, pipeline, self.bundles, self.options) if pipeline else ()
        fetching = self._fetching(pipeline) if self.options.zero == WHOLLY_SHARDED else None
        again = _again(graph, self.units, self.options)
        launches = host_launches(
            self.units, pipeline or [Layout(())] * len(self.units), self.bundles, self.options,
            self.operators, again,
        )  # fmt: skip
        self.template, self.tasks = skeleton(
            self.joined, self.places, len(self.prices.kinds), micro, edges, fetching, launches,
            sync_each=self.options.sums > 1,
        )  # fmt: skip
        self.room: Workspace = work(len(self.factors), len(self.prices.kinds), len(self.bundles))
        rates = self.operators.rates
        moving = cluster.device.memory_bandwidth * rates.streaming
        traffic = TRAFFIC[self.options.optimizer]
        self.rates = AssignmentRates(
            update=traffic / moving * NANO,
            launch=rates.launch * NANO,
            zero=self.options.zero,
            shards=_sharding(self.factors, self.options),
            again=again,
            early=self.options.early,
            buckets=bool(self.options.bucket),
        )
        self.roles: Codes = np.full((len(self.units), len(self.factors)), WHOLE, np.int8)

    def _fetching(self, pipeline: Sequence[Layout] | None) -> Iterator[tuple[Label, Label]]:
        """What fetching sharded parameters waits for; without a pipeline there is one stage."""
        layouts = pipeline or [Layout(())] * len(self.units)
        return ahead(self.units, layouts, self.bundles, self.options)

    def lay(self, roles: Codes) -> None:
        """Write the roles of all units into the task graph."""
        self.roles[:] = roles
        written, count = 0, len(self.units) + len(self.bundles)
        while (written := self._lay(written)) < count:
            self.supply(int(self.room.missing[0]))

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
        return codes_of(self.units, layouts, len(self.factors))

    def layouts_of(self, unit: int, roles: Codes) -> tuple[Layout, ...]:
        """The layouts that several rows of roles of one unit stand for."""
        return layouts_of([self.units[unit]] * len(roles), roles)

    def layouts(self, roles: Codes) -> tuple[Layout, ...]:
        """The layouts that roles stand for."""
        return layouts_of(self.units, roles)

    def plan(self, origin: str, roles: Codes) -> Plan:
        """The plan that roles stand for."""
        return Plan.of(origin, self.graph, self.cluster, self.layouts(roles), self.options)

    @cached_property
    def labels(self) -> TaskLabels:
        """What the tasks are, for people."""
        return labels_of(self.template, len(self.tasks.live))

    @property
    def moved(self) -> float:
        """Bytes that leave a device in a step, on the whole machine."""
        return float(self.room.moved.sum())

    def _lay(self, first: int) -> int:
        return assign_all(
            self.template,
            self.tasks,
            self.prices.table,
            self.times.table,
            self.rates,
            self.places.radix,
            self.times.type,
            first,
            self.roles,
            self.room,
        )


def _codes(names: tuple[str, ...], layout: Layout) -> list[int]:
    return [
        at(int(role[1:]))
        if role.startswith(IDLE)
        else WHOLE
        if role == REPLICA
        else names.index(role)
        for role in layout.roles
    ]


def codes_of(units: Sequence[OpGroup], layouts: Sequence[Layout], factors: int) -> Codes:
    """The roles of units as numbers."""
    known: dict[object, list[int]] = {}
    rows = []
    for unit, layout in zip(units, layouts, strict=True):
        key = tuple(split.name for split in unit.splits), layout
        if key not in known:
            known[key] = _codes(*key)
        rows.append(known[key])
    return np.array(rows, np.int8).reshape(len(units), factors)


def layouts_of(units: Sequence[OpGroup], roles: Codes) -> tuple[Layout, ...]:
    """The layouts that the roles of units stand for."""
    return tuple(_layout(unit, row) for unit, row in zip(units, roles, strict=True))


def _layout(unit: OpGroup, roles: Codes) -> Layout:
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


def _sharding(mesh_factors: Sequence[MeshFactor], options: Options) -> Flags:
    """Along which factors ZeRO shards, if there is any."""
    return np.array(sharding(mesh_factors, options.shard_within), np.bool_) & (options.zero > 0)


def _again(graph: OperatorGraph, units: tuple[OpGroup, ...], options: Options) -> Flags:
    """Whether each unit lies in a repeated layer that runs again."""
    repeated = options.runs_again(graph)
    return np.array([unit.name in repeated for unit in units], np.bool_)
