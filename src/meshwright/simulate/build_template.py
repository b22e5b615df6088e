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
from meshwright.simulate.resources import ResourceClasses
from meshwright.simulate.stages import Label
from meshwright.simulate.task_template import NONE, TaskTemplate
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph


def skeleton(
    joined: EdgeTables,
    places: ResourceClasses,
    kinds: int,
    micro_batches: int,
    chained: Iterable[tuple[Label, Label]] = (),
    ahead: Iterable[tuple[Label, Label]] | None = None,
) -> tuple[TaskTemplate, TaskGraph]:
    """The arrays; `chained` are further edges, between the compute tasks of units, and `ahead` what
    fetching parameters waits for, if they are fetched for each use.
    """
    bones, fetched = _bare(joined, micro_batches), ahead is not None
    n = _number_tasks(bones, *_made(bones), *_read_first(bones), *_read_last(bones), fetched)
    legs, kept = len(bones.leg_unit), int(bones.parameters.sum())
    many = len(bones.flows) + 2 * (len(bones.maker) - kept) + 4 * legs
    most = many * micro_batches + 2 * kept
    before, after = np.zeros((2, most), np.int32)
    wires = _Wires(before, after, np.ones(most, np.bool_))
    e = _join_tasks(bones, wires, fetched)
    order_of_work, waiting = list(chained), list(ahead or ())
    for number, (_, (kind, bundle, micro)) in enumerate(waiting, start=e + len(order_of_work)):
        bones.ahead_edge[int(kind == "again"), bundle, micro] = number
    wires = _further(wires, e, bones, order_of_work, always=True)
    wires = _further(wires, len(wires.before), bones, waiting, always=False)
    graph, order = _graph(n, bones, wires, places, kinds)
    renumbered = np.empty(len(order) + 1, np.int32)
    renumbered[order] = np.arange(len(order), dtype=np.int32)
    renumbered[NONE] = NONE
    moved = {name: renumbered[getattr(bones, name)] for name in _EDGES}
    return bones._replace(**moved), graph


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
        back=_nothing(of_bundles),
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
    )


def _nothing(shape: tuple[int, ...]) -> Indices:
    return np.full(shape, NONE, np.int32)


def _made(bones: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the bundles that it makes, as a flat list of lists."""
    passed = np.flatnonzero(~bones.parameters)
    return _by_unit(bones, passed, bones.maker[passed])


def _read_first(bones: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the parameters that it is the first to read."""
    kept = np.flatnonzero(bones.parameters)
    return _by_unit(bones, kept, np.minimum.reduceat(bones.leg_unit, bones.leg_start[kept]))


def _read_last(bones: TaskTemplate) -> tuple[Indices, Indices]:
    """For each unit the parameters that it is the last to read, of those that return gradients."""
    kept, flowing = np.flatnonzero(bones.parameters), np.where(bones.leg_flows, bones.leg_unit, 0)
    return _by_unit(bones, kept, np.maximum.reduceat(flowing, bones.leg_start[kept]))


def _by_unit(bones: TaskTemplate, bundles: Ints, unit: Indices) -> tuple[Indices, Indices]:
    ordered = np.argsort(unit, kind="stable")
    start = np.searchsorted(unit[ordered], np.arange(len(bones.flows) + 1))
    return start.astype(np.int32), bundles[ordered].astype(np.int32)


def _further(
    wires: _Wires,
    count: int,
    bones: TaskTemplate,
    edges: list[tuple[Label, Label]],
    *,
    always: bool,
) -> _Wires:
    """The first edges, and some more."""
    tasks = {
        "forward": bones.forward,
        "backward": bones.backward,
        "carry": bones.carry,
        "again": bones.again,
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
    bones: TaskTemplate,
    made_start: Indices,
    made_bundle: Indices,
    first_start: Indices,
    first: Indices,
    last_start: Indices,
    last: Indices,
    fetched: bool,
) -> int:
    """Number tasks so that each comes after all that it may wait for; returns how many."""
    n = 0
    units, micro_batches = bones.forward.shape
    for m in range(micro_batches):
        for u in range(units):
            if m == 0 or fetched:
                for i in range(first_start[u], first_start[u + 1]):
                    bones.carry[first[i], m] = n
                    n += 1
            bones.forward[u, m] = n
            n += 1
            for i in range(made_start[u], made_start[u + 1]):
                bones.carry[made_bundle[i], m] = n
                n += 1
    for m in range(micro_batches):
        for u in range(units - 1, -1, -1):
            for i in range(made_start[u], made_start[u + 1]):
                bones.back[made_bundle[i], m] = n
                n += 1
            if fetched:
                for i in range(last_start[u], last_start[u + 1]):
                    bones.again[last[i], m] = n
                    n += 1
            bones.backward[u, m] = n
            n += 1
    for b in range(len(bones.maker)):
        if bones.parameters[b]:
            bones.back[b, 0], bones.update[b], bones.regather[b] = n, n + 1, n + 2
            n += 3
    return n


@compiled
def _wire(wires: _Wires, e: int, before: int, after: int, always: bool) -> int:
    """Write an edge; returns the number of the next."""
    wires.before[e], wires.after[e], wires.always[e] = before, after, always
    return e + 1


@compiled
def _join_tasks(bones: TaskTemplate, wires: _Wires, fetched: bool) -> int:
    """Write the edges of units, of bundles and of legs, each for all micro-batches; returns how
    many.
    """
    e = 0
    for u in range(len(bones.flows)):
        for m in range(bones.forward.shape[1]):
            e = _wire(wires, e, bones.forward[u, m], bones.backward[u, m], bones.flows[u])
    for b in range(len(bones.maker)):
        e = _join_bundle(bones, wires, e, b)
    for b in range(len(bones.maker)):
        for leg in range(bones.leg_start[b], bones.leg_start[b + 1]):
            e = _join_leg(bones, wires, e, b, leg, fetched)
    return e


@compiled
def _join_bundle(bones: TaskTemplate, wires: _Wires, e: int, b: int) -> int:
    if bones.parameters[b]:
        bones.returned_edge[b, 0], bones.regather_edge[b] = e, e + 1
        e = _wire(wires, e, bones.back[b, 0], bones.update[b], False)
        return _wire(wires, e, bones.update[b], bones.regather[b], False)
    maker = bones.maker[b]
    for m in range(bones.forward.shape[1]):
        bones.carried_edge[b, m], bones.returned_edge[b, m] = e, e + 1
        e = _wire(wires, e, bones.forward[maker, m], bones.carry[b, m], False)
        e = _wire(wires, e, bones.back[b, m], bones.backward[maker, m], False)
    return e


@compiled
def _join_leg(bones: TaskTemplate, wires: _Wires, e: int, b: int, leg: int, fetched: bool) -> int:
    kept, maker, unit = bones.parameters[b], bones.maker[b], bones.leg_unit[leg]
    flows, trained = bones.flows[unit], bones.trained[bones.leg_source[leg]]
    for m in range(bones.forward.shape[1]):
        carry_copy, back_copy = 0 if kept and not fetched else m, 0 if kept else m
        reader, reverse = bones.forward[unit, m], bones.backward[unit, m]
        bones.leg_edge[leg, m], bones.leg_back_edge[leg, m] = e, e + 1
        e = _wire(wires, e, bones.carry[b, carry_copy], reader, False)
        e = _wire(wires, e, reverse, bones.back[b, back_copy], False)
        if kept:
            if fetched:
                bones.leg_again_edge[leg, m] = e
                e = _wire(wires, e, bones.again[b, m], reverse, False)
            e = _wire(wires, e, reverse, bones.update[b], trained and flows)
        else:
            e = _wire(wires, e, bones.forward[maker, m], reader, True)
            both = flows and bones.flows[maker]
            e = _wire(wires, e, reverse, bones.backward[maker, m], both)
    return e


def _graph(
    n: int, bones: TaskTemplate, wires: _Wires, places: ResourceClasses, kinds: int
) -> tuple[TaskGraph, Indices]:
    """A task graph in which nothing is live, and the edges in its order."""
    succ_start, by_source = _ordered(wires.before, n)
    after = wires.after[by_source]
    pred_start, by_target = _ordered(after, n)
    joint = np.ones(n, np.bool_)
    joint[bones.forward] = joint[bones.backward] = joint[bones.update[bones.parameters]] = False
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
