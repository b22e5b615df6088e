"""The task template of a graph: every task that any of its plans can have. Enters: what joins its
units, places. Leaves: a `TaskTemplate` that says where they are, and a `TaskGraph` in which nothing
is live yet.

Tasks are numbered so that edges lead to higher numbers (but for those of pipelines): what a layout
writes later may turn tasks and edges on and off, and never makes a cycle. Compiled: a large model
has many micro-batches of many tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.simulate.edges import EdgeTables
from meshwright.simulate.host import LAUNCH, NO_LAUNCHES, HostLaunches
from meshwright.simulate.resources import ResourceClasses
from meshwright.simulate.schedule_edges import Label
from meshwright.simulate.task_template import NONE, TaskTemplate
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph


def skeleton(
    joined: EdgeTables,
    places: ResourceClasses,
    kinds: int,
    micro_batches: int,
    chained: Iterable[tuple[Label, Label]] = (),
    ahead: Iterable[tuple[Label, Label]] | None = None,
    launches: HostLaunches = NO_LAUNCHES,
    *,
    sync_each: bool = False,
) -> tuple[TaskTemplate, TaskGraph]:
    """The arrays; `chained` are further edges, between the compute tasks of units, `ahead` what
    fetching parameters waits for, if they are fetched for each use, and `launches` the host's. With
    `sync_each` gradients of parameters are returned for each micro-batch.
    """
    template, fetched = _bare(joined, micro_batches), ahead is not None
    n = _number_tasks(
        template,
        *_made(template),
        *_read_first(template),
        *_read_last(template),
        fetched,
        sync_each,
    )
    template, n = _launched(template, launches, n)
    consumers, kept = len(template.leg_unit), int(template.parameters.sum())
    many = len(template.flows) + 2 * len(template.maker) + 4 * consumers
    most = many * micro_batches + kept
    before, after = np.zeros((2, most), np.int32)
    wires = _Wires(before, after, np.ones(most, np.bool_))
    e = _join_tasks(template, wires, fetched)
    order_of_work, waiting = [*chained, *launches.edges], list(ahead or ())
    for number, (_, (kind, bundle, micro)) in enumerate(waiting, start=e + len(order_of_work)):
        template.ahead_edge[int(kind == "again"), bundle, micro] = number
    wires = _further(wires, e, template, order_of_work, always=True)
    wires = _further(wires, len(wires.before), template, waiting, always=False)
    graph, order = _graph(n, template, wires, places, kinds)
    graph.live[template.launch] = True
    graph.duration[template.launch] = launches.nanoseconds
    renumbered = np.empty(len(order) + 1, np.int32)
    renumbered[order] = np.arange(len(order), dtype=np.int32)
    renumbered[NONE] = NONE
    moved = {name: renumbered[getattr(template, name)] for name in _EDGES}
    return template._replace(**moved), graph


_EDGES = (
    "carried_edge", "returned_edge", "leg_edge", "leg_back_edge", "leg_again_edge", "regather_edge",
    "ahead_edge",
)  # fmt: skip
"""The fields of `TaskTemplate` that hold numbers of edges."""


class _Wires(NamedTuple):
    """Edges in the order in which they are found."""

    before: Indices
    after: Indices
    always: Flags
    """Whether an edge is live whatever the layouts."""


def _bare(joined: EdgeTables, micro_batches: int) -> TaskTemplate:
    """A skeleton without tasks."""
    tables = joined.tables
    units, bundles = len(tables["flows"]), len(tables["maker"])
    of_units, of_legs = (units, micro_batches), (len(tables["leg_unit"]), micro_batches)
    of_bundles, of_bundle = (bundles, micro_batches), (bundles,)
    return TaskTemplate(
        **tables,
        forward=_nothing(of_units),
        backward=_nothing(of_units),
        carry=_nothing(of_bundles),
        carry_back=_nothing(of_bundles),
        update=_nothing(of_bundle),
        again=_nothing(of_bundles),
        regather=_nothing(of_bundle),
        carried_edge=_nothing(of_bundles),
        returned_edge=_nothing(of_bundles),
        leg_edge=_nothing(of_legs),
        leg_back_edge=_nothing(of_legs),
        leg_again_edge=_nothing(of_legs),
        regather_edge=_nothing(of_bundle),
        ahead_edge=_nothing((2, *of_bundles)),
        launch=_nothing((0,)),
        launch_unit=_nothing((0,)),
        launch_micro=_nothing((0,)),
    )


def _launched(template: TaskTemplate, launches: HostLaunches, n: int) -> tuple[TaskTemplate, int]:
    """The same with tasks of hosts, numbered from n on, and the next number."""
    end = n + len(launches.nanoseconds)
    launched = template._replace(
        launch=np.arange(n, end, dtype=np.int32),
        launch_unit=np.array(launches.units, np.int32),
        launch_micro=np.array(launches.micro_batches, np.int32),
    )
    return launched, end


def _nothing(shape: tuple[int, ...]) -> Indices:
    return np.full(shape, NONE, np.int32)


def _made(template: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the bundles that it makes, as a flat list of lists."""
    passed = np.flatnonzero(~template.parameters)
    return _by_unit(template, passed, template.maker[passed])


def _read_first(template: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the parameters that it is the first to read."""
    kept = np.flatnonzero(template.parameters)
    return _by_unit(
        template, kept, np.minimum.reduceat(template.leg_unit, template.leg_start[kept])
    )


def _read_last(template: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the parameters that it is the last to read, of those that return gradients."""
    kept, flowing = (
        np.flatnonzero(template.parameters),
        np.where(template.leg_flows, template.leg_unit, 0),
    )
    return _by_unit(template, kept, np.maximum.reduceat(flowing, template.leg_start[kept]))


def _by_unit(template: TaskTemplate, bundles: Ints, unit: Indices) -> tuple[Indices, Indices]:
    ordered = np.argsort(unit, kind="stable")
    start = np.searchsorted(unit[ordered], np.arange(len(template.flows) + 1))
    return start.astype(np.int32), bundles[ordered].astype(np.int32)


def _further(
    wires: _Wires,
    count: int,
    template: TaskTemplate,
    edges: list[tuple[Label, Label]],
    *,
    always: bool,
) -> _Wires:
    """The first edges, and some more."""
    tasks = {
        "forward": template.forward,
        "backward": template.backward,
        "carry": template.carry,
        "again": template.again,
        LAUNCH: template.launch[:, None],
    }
    ends = [
        [tasks[kind][number, m] for kind, number, m in both] for both in zip(*edges, strict=True)
    ]
    before, after = np.array(ends or [[], []], np.int32)
    return _Wires(
        np.concatenate((wires.before[:count], before)),
        np.concatenate((wires.after[:count], after)),
        np.concatenate((wires.always[:count], np.full(len(edges), always))),
    )


@compiled
def _number_tasks(
    template: TaskTemplate,
    made_start: Indices,
    made_bundle: Indices,
    first_start: Indices,
    first: Indices,
    last_start: Indices,
    last: Indices,
    fetched: bool,
    sync_each: bool,
) -> int:
    """Number tasks so that each comes after all that it may wait for; returns how many."""
    n = 0
    units, micro_batches = template.forward.shape
    for m in range(micro_batches):
        for u in range(units):
            if m == 0 or fetched:
                for i in range(first_start[u], first_start[u + 1]):
                    template.carry[first[i], m] = n
                    n += 1
            template.forward[u, m] = n
            n += 1
            for i in range(made_start[u], made_start[u + 1]):
                template.carry[made_bundle[i], m] = n
                n += 1
    for m in range(micro_batches):
        for u in range(units - 1, -1, -1):
            for i in range(made_start[u], made_start[u + 1]):
                template.carry_back[made_bundle[i], m] = n
                n += 1
            if fetched:
                for i in range(last_start[u], last_start[u + 1]):
                    template.again[last[i], m] = n
                    n += 1
            template.backward[u, m] = n
            n += 1
            if sync_each:
                for i in range(first_start[u], first_start[u + 1]):
                    template.carry_back[first[i], m] = n
                    n += 1
    for b in range(len(template.maker)):
        if template.parameters[b]:
            if not sync_each:
                template.carry_back[b, 0] = n
                n += 1
            template.update[b], template.regather[b] = n, n + 1
            n += 2
    return n


@compiled
def _wire(wires: _Wires, e: int, before: int, after: int, always: bool) -> int:
    """Write an edge; returns the number of the next."""
    wires.before[e], wires.after[e], wires.always[e] = before, after, always
    return e + 1


@compiled
def _join_tasks(template: TaskTemplate, wires: _Wires, fetched: bool) -> int:
    """Write the edges of units, of bundles and of consumers, each for all micro-batches; returns
    how many.
    """
    e = 0
    for u in range(len(template.flows)):
        for m in range(template.forward.shape[1]):
            e = _wire(wires, e, template.forward[u, m], template.backward[u, m], template.flows[u])
    for b in range(len(template.maker)):
        e = _join_bundle(template, wires, e, b)
    for b in range(len(template.maker)):
        for consumer in range(template.leg_start[b], template.leg_start[b + 1]):
            e = _join_leg(template, wires, e, b, consumer, fetched)
    return e


@compiled
def _join_bundle(template: TaskTemplate, wires: _Wires, e: int, b: int) -> int:
    if template.parameters[b]:
        for m in range(template.forward.shape[1]):
            if template.carry_back[b, m] != NONE:
                template.returned_edge[b, m] = e
                e = _wire(wires, e, template.carry_back[b, m], template.update[b], False)
        template.regather_edge[b] = e
        return _wire(wires, e, template.update[b], template.regather[b], False)
    maker = template.maker[b]
    for m in range(template.forward.shape[1]):
        template.carried_edge[b, m], template.returned_edge[b, m] = e, e + 1
        e = _wire(wires, e, template.forward[maker, m], template.carry[b, m], False)
        e = _wire(wires, e, template.carry_back[b, m], template.backward[maker, m], False)
    return e


@compiled
def _join_leg(
    template: TaskTemplate, wires: _Wires, e: int, b: int, consumer: int, fetched: bool
) -> int:
    kept, maker, unit = template.parameters[b], template.maker[b], template.leg_unit[consumer]
    flows, trained = template.flows[unit], template.trained[template.leg_source[consumer]]
    for m in range(template.forward.shape[1]):
        carry_copy = 0 if kept and not fetched else m
        back_copy = 0 if template.carry_back[b, m] == NONE else m
        reader, reverse = template.forward[unit, m], template.backward[unit, m]
        template.leg_edge[consumer, m], template.leg_back_edge[consumer, m] = e, e + 1
        e = _wire(wires, e, template.carry[b, carry_copy], reader, False)
        e = _wire(wires, e, reverse, template.carry_back[b, back_copy], False)
        if kept:
            if fetched:
                template.leg_again_edge[consumer, m] = e
                e = _wire(wires, e, template.again[b, m], reverse, False)
            e = _wire(wires, e, reverse, template.update[b], trained and flows)
        else:
            e = _wire(wires, e, template.forward[maker, m], reader, True)
            both = flows and template.flows[maker]
            e = _wire(wires, e, reverse, template.backward[maker, m], both)
    return e


def _graph(
    n: int, template: TaskTemplate, wires: _Wires, places: ResourceClasses, kinds: int
) -> tuple[TaskGraph, Indices]:
    """A task graph in which nothing is live, and the edges in its order."""
    succ_start, by_source = _ordered(wires.before, n)
    after = wires.after[by_source]
    pred_start, by_target = _ordered(after, n)
    joint = np.ones(n, np.bool_)
    for alone in (template.forward, template.backward, template.launch):
        joint[alone] = False
    joint[template.update[template.parameters]] = False
    graph = TaskGraph(
        live=np.zeros(n, np.bool_),
        duration=np.ones(n, np.int64),
        joint=joint,
        places=np.full((n, 2), NONE, np.int32),
        hold=np.zeros((n, kinds), np.int64),
        set_start=places.set_start,
        set_resource=places.set_resource,
        resource_kind=places.kind,
        succ_start=succ_start,
        succ=after,
        edge_live=wires.always[by_source],
        pred_start=pred_start,
        pred=wires.before[by_source][by_target],
        pred_edge=by_target,
    )
    return graph, by_source


def _ordered(ends: Indices, n: int) -> tuple[Indices, Indices]:
    """Edges by one of their ends, those of one task in the order given; where each task's begin."""
    start, order = np.zeros(n + 1, np.int32), np.empty(len(ends), np.int32)
    start[1:] = np.cumsum(np.bincount(ends, minlength=n))
    _deal(ends, start[:-1].copy(), order)
    return start, order


@compiled
def _deal(ends: Indices, free: Indices, order: Indices) -> None:
    """Put each edge at the first free place of its task."""
    for edge in range(len(ends)):
        order[free[ends[edge]]] = edge
        free[ends[edge]] += 1
