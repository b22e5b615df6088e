"""The tasks that any plan for a graph can have, one after the other: a slow twin of
`simulate.build_template` and of `simulate.edges`."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, NamedTuple

import numpy as np

from meshwright.lower.bundles import EdgeConsumer, TensorEdge
from meshwright.sharding.states import State
from meshwright.sharding.unit import BoundaryTensor, OpGroup
from meshwright.simulate.host import NO_LAUNCHES, HostLaunches
from meshwright.simulate.operator_table import MOST_SPLITS
from meshwright.simulate.resources import ResourceClasses
from meshwright.simulate.task_template import NONE, Bytes8, Floats, TaskLabels, TaskTemplate
from meshwright.simulate.tasks import Indices, Ints, TaskGraph

Number = int | np.int32


Label = tuple[str, int, int]


class _Tasks:
    """Tasks in the order of their numbers, and edges between them."""

    def __init__(self) -> None:
        self.labels: list[tuple[str, int, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.always: list[bool] = []
        """For each edge whether it is live whatever the layouts."""

    def task(self, kind: str, subject: int, micro_batch: int = 0) -> int:
        self.labels.append((kind, subject, micro_batch))
        return len(self.labels) - 1

    def edge(self, before: Number, after: Number, always: bool = False) -> int:
        self.edges.append((int(before), int(after)))
        self.always.append(always)
        return len(self.edges) - 1


def skeleton(
    units: tuple[OpGroup, ...],
    bundles: tuple[TensorEdge, ...],
    places: ResourceClasses,
    kinds: int,
    micro_batches: int,
    chained: Iterable[tuple[Label, Label]] = (),
    ahead: Iterable[tuple[Label, Label]] | None = None,
    sums: int = 1,
    launches: HostLaunches = NO_LAUNCHES,
) -> tuple[TaskTemplate, TaskGraph, TaskLabels]:
    """The arrays; `chained` are further edges, between tasks by kind, subject and micro-batch, and
    `ahead` what fetching parameters waits for, if they are fetched for each use.
    """
    tasks, fetched = _Tasks(), ahead is not None
    slots = _number_tasks(tasks, units, bundles, micro_batches, fetched, sums)
    edges = _join_tasks(tasks, slots, units, bundles, fetched, sums)
    number_of = {label: number for number, label in enumerate(tasks.labels)}
    launched = [
        tasks.task("launch", unit, micro)
        for unit, micro in zip(launches.units, launches.micro_batches, strict=True)
    ]
    number_of |= {("launch", place, 0): number for place, number in enumerate(launched)}
    for before, after in (*chained, *launches.edges):
        tasks.edge(number_of[before], number_of[after], True)
    for before, after in ahead or ():
        way = ("carry", "again").index(after[0])
        number = tasks.edge(number_of[before], number_of[after])
        edges.ahead_edge[way, after[1], after[2]] = number
    graph, renumbered = _graph(tasks, places, kinds)
    for number, nanoseconds in zip(launched, launches.nanoseconds, strict=True):
        graph.live[number], graph.duration[number] = True, nanoseconds
    moved: dict[str, Any] = {
        name: np.where(array == NONE, NONE, renumbered[array]).astype(np.int32)
        for name, array in edges._asdict().items()
    }
    near: list[set[int]] = [set() for _ in units]
    for b, consumer in _legs(bundles):
        near[consumer.unit].add(b)
        near[bundles[b].sources[consumer.tensor].maker].add(b)
    template = TaskTemplate(
        flows=np.array([unit.flows for unit in units], np.bool_),
        unit_bundle_start=_starts(near),
        unit_bundle=np.array([b for bundle_set in near for b in sorted(bundle_set)], np.int32),
        maker=np.array([bundle.maker for bundle in bundles], np.int32),
        parameters=np.array([bundle.parameters for bundle in bundles], np.bool_),
        **slots._asdict(),
        **moved,
        launch=np.array(launched, np.int32),
        launch_unit=np.array(launches.units, np.int32),
        launch_micro=np.array(launches.micro_batches, np.int32),
        **_of_sources(bundles),
        **_of_legs(units, bundles),
    )
    kinds_, subjects, micros = zip(*tasks.labels, strict=True) if tasks.labels else ((), (), ())
    return template, graph, TaskLabels(kinds_, subjects, micros)


class _Slots(NamedTuple):
    """The numbers of tasks, as in `TaskTemplate`."""

    forward: Indices
    backward: Indices
    carry: Indices
    carry_back: Indices
    update: Indices
    again: Indices
    regather: Indices


def _number_tasks(
    tasks: _Tasks,
    units: tuple[OpGroup, ...],
    bundles: tuple[TensorEdge, ...],
    micro_batches: int,
    fetched: bool,
    sums: int,
) -> _Slots:
    """Tasks in an order in which each comes after all that it may wait for."""
    of_units, of_bundles = (len(units), micro_batches), (len(bundles), micro_batches)
    slots = _Slots(
        forward=_nothing(of_units),
        backward=_nothing(of_units),
        carry=_nothing(of_bundles),
        carry_back=_nothing(of_bundles),
        update=_nothing(of_bundles[:1]),
        again=_nothing(of_bundles),
        regather=_nothing(of_bundles[:1]),
    )
    kept = [b for b, bundle in enumerate(bundles) if bundle.parameters]
    bundles_of: dict[int, list[int]] = {}
    for b, bundle in enumerate(bundles):
        if not bundle.parameters:
            bundles_of.setdefault(bundle.maker, []).append(b)
    first: dict[int, list[int]] = {}
    last: dict[int, list[int]] = {}
    for b in kept:
        first.setdefault(min(consumer.unit for consumer in bundles[b].consumers), []).append(b)
        flowing = [
            g.unit for g in bundles[b].consumers if g.boundary.backward and units[g.unit].flows
        ]
        last.setdefault(max(flowing, default=0), []).append(b)
    for m in range(micro_batches):
        for u in range(len(units)):
            for b in first.get(u, ()) if m == 0 or fetched else ():
                slots.carry[b, m] = tasks.task("carry", b, m)
            slots.forward[u, m] = tasks.task("forward", u, m)
            for b in bundles_of.get(u, ()):
                slots.carry[b, m] = tasks.task("carry", b, m)
    for m in range(micro_batches):
        for u in reversed(range(len(units))):
            for b in bundles_of.get(u, ()):
                slots.carry_back[b, m] = tasks.task("return", b, m)
            for b in last.get(u, ()) if fetched else ():
                slots.again[b, m] = tasks.task("again", b, m)
            slots.backward[u, m] = tasks.task("backward", u, m)
            for b in first.get(u, ()) if sums > 1 else ():
                slots.carry_back[b, m] = tasks.task("return", b, m)
    for b in kept:
        if sums == 1:
            slots.carry_back[b, 0] = tasks.task("return", b)
        slots.update[b] = tasks.task("update", b)
        slots.regather[b] = tasks.task("regather", b)
    return slots


class _Edges(NamedTuple):
    """The numbers of edges, as in `TaskTemplate`."""

    carried_edge: Indices
    returned_edge: Indices
    leg_edge: Indices
    leg_back_edge: Indices
    leg_again_edge: Indices
    regather_edge: Indices
    ahead_edge: Indices


def _join_tasks(
    tasks: _Tasks,
    slots: _Slots,
    units: tuple[OpGroup, ...],
    bundles: tuple[TensorEdge, ...],
    fetched: bool,
    sums: int,
) -> _Edges:
    consumers = _legs(bundles)
    micro_batches = slots.forward.shape[1]
    edges = _Edges(
        carried_edge=_nothing(slots.carry.shape),
        returned_edge=_nothing(slots.carry.shape),
        leg_edge=_nothing((len(consumers), micro_batches)),
        leg_back_edge=_nothing((len(consumers), micro_batches)),
        leg_again_edge=_nothing((len(consumers), micro_batches)),
        regather_edge=_nothing((len(bundles),)),
        ahead_edge=_nothing((2, *slots.carry.shape)),
    )
    for u, unit in enumerate(units):
        for m in range(micro_batches):
            tasks.edge(slots.forward[u, m], slots.backward[u, m], unit.flows)
    for b, bundle in enumerate(bundles):
        if bundle.parameters:
            for m in range(sums):
                edges.returned_edge[b, m] = tasks.edge(slots.carry_back[b, m], slots.update[b])
            edges.regather_edge[b] = tasks.edge(slots.update[b], slots.regather[b])
            continue
        for m in range(micro_batches):
            maker, reverse = slots.forward[bundle.maker, m], slots.backward[bundle.maker, m]
            edges.carried_edge[b, m] = tasks.edge(maker, slots.carry[b, m])
            edges.returned_edge[b, m] = tasks.edge(slots.carry_back[b, m], reverse)
    for number, (b, consumer) in enumerate(consumers):
        bundle, flows = bundles[b], units[consumer.unit].flows
        for m in range(micro_batches):
            carry_micro = m if fetched or not bundle.parameters else 0
            back_micro = m if sums > 1 or not bundle.parameters else 0
            reader, reverse = slots.forward[consumer.unit, m], slots.backward[consumer.unit, m]
            edges.leg_edge[number, m] = tasks.edge(slots.carry[b, carry_micro], reader)
            edges.leg_back_edge[number, m] = tasks.edge(reverse, slots.carry_back[b, back_micro])
            if bundle.parameters:
                if fetched:
                    edges.leg_again_edge[number, m] = tasks.edge(slots.again[b, m], reverse)
                trained = bundle.sources[consumer.tensor].trained
                tasks.edge(reverse, slots.update[b], trained and flows)
            else:
                tasks.edge(slots.forward[bundle.maker, m], reader, True)
                both = flows and units[bundle.maker].flows
                tasks.edge(reverse, slots.backward[bundle.maker, m], both)
    return edges


def _nothing(shape: tuple[int, ...]) -> Indices:
    return np.full(shape, NONE, np.int32)


def _legs(bundles: tuple[TensorEdge, ...]) -> list[tuple[int, EdgeConsumer]]:
    return [(b, consumer) for b, bundle in enumerate(bundles) for consumer in bundle.consumers]


def _starts(lists: Iterable[Sized]) -> Indices:
    return np.cumsum([0, *map(len, lists)]).astype(np.int32)


def _of_sources(bundles: tuple[TensorEdge, ...]) -> dict[str, Any]:
    sources = [source for bundle in bundles for source in bundle.sources]
    return {
        "source_start": _starts(bundle.sources for bundle in bundles),
        "source_maker": np.array([source.maker for source in sources], np.int32),
        "source_bytes": np.array([source.bytes for source in sources], np.float64),
        "source_there": _codes([source.boundary.forward for source in sources]),
        "source_back": _codes([source.boundary.backward or () for source in sources]),
        "trained": np.array([source.trained for source in sources], np.bool_),
    }


def _of_legs(units: tuple[OpGroup, ...], bundles: tuple[TensorEdge, ...]) -> dict[str, Any]:
    first = _starts(bundle.sources for bundle in bundles)
    consumers = _legs(bundles)
    boundaries = [consumer.boundary for _, consumer in consumers]
    flows = [
        consumer.boundary.backward is not None and units[consumer.unit].flows
        for _, consumer in consumers
    ]
    return {
        "leg_start": _starts(bundle.consumers for bundle in bundles),
        "leg_source": np.array([first[b] + consumer.tensor for b, consumer in consumers], np.int32),
        "leg_unit": np.array([consumer.unit for _, consumer in consumers], np.int32),
        "leg_there": _codes([boundary.forward for boundary in boundaries]),
        "leg_back": _codes([boundary.backward or () for boundary in boundaries]),
        "leg_flows": np.array(flows, np.bool_),
        "leg_reads": np.ones(len(consumers), np.bool_),
        "leg_extra": np.array(
            [
                bool(boundary.halo or boundary.statistics or boundary.exchanged)
                for boundary in boundaries
            ],
            np.bool_,
        ),
        "leg_halo": _amounts([boundary.halo for boundary in boundaries]),
        "leg_exchanged": _amounts([boundary.exchanged for boundary in boundaries]),
        "leg_statistics": _amounts(
            [
                tuple(
                    0 if statistic is None else statistic.bytes for statistic in boundary.statistics
                )
                for boundary in boundaries
            ]
        ),
        "leg_rounds": _rounds(boundaries),
        "leg_cut_by": _cut_by(boundaries),
    }


def _rounds(boundaries: list[BoundaryTensor]) -> Ints:
    rounds = np.zeros((len(boundaries), MOST_SPLITS, 2), np.int64)
    for n, boundary in enumerate(boundaries):
        for split, statistic in enumerate(boundary.statistics):
            rounds[n, split] = (
                (0, 0) if statistic is None else (statistic.forward, statistic.backward)
            )
    return rounds


def _cut_by(boundaries: list[BoundaryTensor]) -> Ints:
    cuts = np.zeros((len(boundaries), MOST_SPLITS), np.int64)
    for n, boundary in enumerate(boundaries):
        for split, statistic in enumerate(boundary.statistics):
            for other in () if statistic is None else statistic.cut_by:
                cuts[n, split] |= 1 << other
    return cuts


def _graph(tasks: _Tasks, places: ResourceClasses, kinds: int) -> tuple[TaskGraph, Indices]:
    """A task graph in which nothing is live, and the new number of every edge."""
    n, e = len(tasks.labels), len(tasks.edges)
    before = np.array([a for a, _ in tasks.edges], np.int32)
    after = np.array([b for _, b in tasks.edges], np.int32)
    by_source = np.argsort(before, kind="stable").astype(np.int32)
    renumbered = np.zeros(e, np.int32)
    renumbered[by_source] = np.arange(e, dtype=np.int32)
    by_target = np.argsort(after[by_source], kind="stable").astype(np.int32)

    def starts(ends: Indices) -> Indices:
        counted = np.bincount(ends, minlength=n) if e else np.zeros(n, np.int64)
        return np.concatenate(([0], np.cumsum(counted))).astype(np.int32)

    graph = TaskGraph(
        live=np.zeros(n, np.bool_),
        duration=np.ones(n, np.int64),
        joint=np.array([kind not in _COMPUTE for kind, _, _ in tasks.labels], np.bool_),
        places=np.full((n, 2), NONE, np.int32),
        hold=np.zeros((n, kinds), np.int64),
        set_start=places.set_start,
        set_resource=places.set_resource,
        resource_kind=places.kind,
        succ_start=starts(before),
        succ=after[by_source],
        edge_live=np.array(tasks.always, np.bool_)[by_source],
        pred_start=starts(after),
        pred=before[by_source][by_target],
        pred_edge=by_target,
    )
    return graph, renumbered


_COMPUTE = ("forward", "backward", "update", "launch")


def _codes(rows: list[tuple[State, ...]]) -> Bytes8:
    codes = np.full((len(rows), MOST_SPLITS), NONE, np.int8)
    for number, row in enumerate(rows):
        codes[number, : len(row)] = row
    return codes


def _amounts(rows: list[tuple[int, ...]]) -> Floats:
    amounts = np.zeros((len(rows), MOST_SPLITS))
    for number, row in enumerate(rows):
        amounts[number, : len(row)] = row
    return amounts
