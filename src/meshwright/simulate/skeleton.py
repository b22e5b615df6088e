"""The tasks that any plan for a graph can have, and where its layouts write.

Enters: units, bundles. Leaves: a `Skeleton`, arrays that compiled code reads, and a `TaskGraph`
without times.

    forward(u, m)  backward(u, m)     a unit's compute, for each micro-batch m
    carry(b, m)    return(b, m)       what moves a bundle to its readers, and its gradient back
    update(b)                         the optimizer, for parameters
    again(b)  regather(b)             fetching sharded parameters for the backward pass, and
                                      gathering what was updated in shards
A plan decides which of them are live and how long they take; it never moves an edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.parallelize.states import State
from meshwright.parallelize.units import Unit
from meshwright.simulate.bundles import Bundle
from meshwright.simulate.places import Places
from meshwright.simulate.tasks import Flags, Indices, TaskGraph
from meshwright.simulate.times import MOST_SPLITS

Bytes8 = NDArray[np.int8]
Floats = NDArray[np.float64]

NONE = -1
"""In arrays of numbers of tasks and edges: there is none."""


class Skeleton(NamedTuple):
    """What compiled code knows of units, bundles and where their tasks are."""

    flows: Flags
    """[units] whether a unit has a backward pass."""
    unit_bundle_start: Indices
    unit_bundle: Indices
    """The bundles that a unit makes or reads."""
    forward: Indices
    """[units, micro-batches] tasks."""
    backward: Indices
    maker: Indices
    """[bundles]"""
    parameters: Flags
    """[bundles]"""
    source_start: Indices
    source_maker: Indices
    """[sources] units."""
    source_bytes: Floats
    source_there: Bytes8
    """[sources, splits of the maker]"""
    source_back: Bytes8
    trained: Flags
    """[sources]"""
    leg_start: Indices
    leg_source: Indices
    leg_unit: Indices
    leg_there: Bytes8
    """[legs, splits of the reader]"""
    leg_back: Bytes8
    leg_flows: Flags
    """[legs] whether a gradient comes back."""
    leg_reads: Flags
    """[legs] always."""
    leg_extra: Flags
    """[legs] whether there are halos or statistics."""
    leg_halo: Floats
    leg_statistics: Floats
    carry: Indices
    """[bundles, micro-batches] tasks; of parameters only the first."""
    back: Indices
    """[bundles, micro-batches] tasks that return gradients; of parameters only the first."""
    update: Indices
    """[bundles] tasks, or NONE."""
    again: Indices
    regather: Indices
    carried_edge: Indices
    """[bundles, micro-batches] maker -> carry, or NONE for parameters."""
    returned_edge: Indices
    """[bundles, micro-batches] return -> maker's backward, or -> update."""
    leg_edge: Indices
    """[legs, micro-batches] carry -> reader."""
    leg_back_edge: Indices
    """[legs, micro-batches] reader's backward -> return."""
    leg_again_edge: Indices
    """[legs, micro-batches] again -> reader's backward, or NONE."""
    regather_edge: Indices
    """[bundles] update -> regather, or NONE."""


class Labels(NamedTuple):
    """What the tasks are, for people."""

    kind: tuple[str, ...]
    """forward, backward, carry, return, update, again, regather"""
    subject: tuple[int, ...]
    """The number of the unit or bundle."""
    micro_batch: tuple[int, ...]


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

    def edge(self, before: int, after: int, always: bool = False) -> int:
        self.edges.append((before, after))
        self.always.append(always)
        return len(self.edges) - 1


def skeleton(
    units: tuple[Unit, ...],
    bundles: tuple[Bundle, ...],
    places: Places,
    kinds: int,
    micro_batches: int,
    chained: Iterable[tuple[tuple[str, int, int], tuple[str, int, int]]] = (),
) -> tuple[Skeleton, TaskGraph, Labels]:
    """The arrays; `chained` are further edges, between tasks by kind, subject and micro-batch."""
    tasks = _Tasks()
    flows = [unit.flows for unit in units]
    micro = range(micro_batches)
    shape = (len(bundles), micro_batches)
    carry, back = np.full(shape, NONE, np.int32), np.full(shape, NONE, np.int32)
    forward = np.full((len(units), micro_batches), NONE, np.int32)
    backward = forward.copy()
    update, again, regather = (np.full(len(bundles), NONE, np.int32) for _ in range(3))
    made: dict[int, list[int]] = {}
    for b, bundle in enumerate(bundles):
        if bundle.parameters:
            carry[b, 0] = tasks.task("carry", b)
        else:
            made.setdefault(bundle.maker, []).append(b)
    for m in micro:
        for u in range(len(units)):
            forward[u, m] = tasks.task("forward", u, m)
            for b in made.get(u, ()):
                carry[b, m] = tasks.task("carry", b, m)
    for b, bundle in enumerate(bundles):
        if bundle.parameters:
            again[b] = tasks.task("again", b)
    for m in micro:
        for u in reversed(range(len(units))):
            for b in made.get(u, ()):
                back[b, m] = tasks.task("return", b, m)
            backward[u, m] = tasks.task("backward", u, m)
    for b, bundle in enumerate(bundles):
        if bundle.parameters:
            back[b, 0] = tasks.task("return", b)
            update[b] = tasks.task("update", b)
            regather[b] = tasks.task("regather", b)
    legs = [(b, leg) for b, bundle in enumerate(bundles) for leg in bundle.legs]
    sources = [source for bundle in bundles for source in bundle.sources]
    first = np.cumsum([0, *(len(bundle.sources) for bundle in bundles)])
    carried_edge, returned_edge = np.full(shape, NONE, np.int32), np.full(shape, NONE, np.int32)
    leg_shape = (len(legs), micro_batches)
    leg_edge, leg_back_edge, leg_again_edge = (np.full(leg_shape, NONE, np.int32) for _ in range(3))
    regather_edge = np.full(len(bundles), NONE, np.int32)
    for u in range(len(units)):
        for m in micro:
            tasks.edge(int(forward[u, m]), int(backward[u, m]), flows[u])
    for b, bundle in enumerate(bundles):
        if bundle.parameters:
            returned_edge[b, 0] = tasks.edge(int(back[b, 0]), int(update[b]))
            regather_edge[b] = tasks.edge(int(update[b]), int(regather[b]))
            continue
        for m in micro:
            carried_edge[b, m] = tasks.edge(int(forward[bundle.maker, m]), int(carry[b, m]))
            returned_edge[b, m] = tasks.edge(int(back[b, m]), int(backward[bundle.maker, m]))
    for number, (b, leg) in enumerate(legs):
        bundle = bundles[b]
        for m in micro:
            own = 0 if bundle.parameters else m
            reader, reverse = int(forward[leg.unit, m]), int(backward[leg.unit, m])
            leg_edge[number, m] = tasks.edge(int(carry[b, own]), reader)
            leg_back_edge[number, m] = tasks.edge(reverse, int(back[b, own]))
            if bundle.parameters:
                leg_again_edge[number, m] = tasks.edge(int(again[b]), reverse)
                trained = bundle.sources[leg.tensor].trained
                tasks.edge(reverse, int(update[b]), trained and flows[leg.unit])
            else:
                tasks.edge(int(forward[bundle.maker, m]), reader, True)
                both = flows[leg.unit] and flows[bundle.maker]
                tasks.edge(reverse, int(backward[bundle.maker, m]), both)
    number_of = {label: number for number, label in enumerate(tasks.labels)}
    for before, after in chained:
        tasks.edge(number_of[before], number_of[after], True)
    graph, renumbered = _graph(tasks, places, kinds)
    near: list[set[int]] = [set() for _ in units]
    for b, leg in legs:
        near[leg.unit].add(b)
        near[bundles[b].sources[leg.tensor].maker].add(b)

    def moved(edges: Indices) -> Indices:
        return np.where(edges == NONE, NONE, renumbered[edges]).astype(np.int32)

    bones = Skeleton(
        flows=np.array(flows, np.bool_),
        unit_bundle_start=np.cumsum([0, *map(len, near)]).astype(np.int32),
        unit_bundle=np.array([b for own in near for b in sorted(own)], np.int32),
        forward=forward,
        backward=backward,
        maker=np.array([bundle.maker for bundle in bundles], np.int32),
        parameters=np.array([bundle.parameters for bundle in bundles], np.bool_),
        source_start=first.astype(np.int32),
        source_maker=np.array([source.maker for source in sources], np.int32),
        source_bytes=np.array([source.bytes for source in sources], np.float64),
        source_there=_codes([source.port.there for source in sources]),
        source_back=_codes([source.port.back or () for source in sources]),
        trained=np.array([source.trained for source in sources], np.bool_),
        leg_start=np.cumsum([0, *(len(bundle.legs) for bundle in bundles)]).astype(np.int32),
        leg_source=np.array([first[b] + leg.tensor for b, leg in legs], np.int32),
        leg_unit=np.array([leg.unit for _, leg in legs], np.int32),
        leg_there=_codes([leg.port.there for _, leg in legs]),
        leg_back=_codes([leg.port.back or () for _, leg in legs]),
        leg_flows=np.array(
            [leg.port.back is not None and flows[leg.unit] for _, leg in legs], np.bool_
        ),
        leg_reads=np.ones(len(legs), np.bool_),
        leg_extra=np.array([bool(leg.port.halo or leg.port.statistics) for _, leg in legs]),
        leg_halo=_amounts([leg.port.halo for _, leg in legs]),
        leg_statistics=_amounts([leg.port.statistics for _, leg in legs]),
        carry=carry,
        back=back,
        update=update,
        again=again,
        regather=regather,
        carried_edge=moved(carried_edge),
        returned_edge=moved(returned_edge),
        leg_edge=moved(leg_edge),
        leg_back_edge=moved(leg_back_edge),
        leg_again_edge=moved(leg_again_edge),
        regather_edge=moved(regather_edge),
    )
    kinds_, subjects, micros = zip(*tasks.labels, strict=True) if tasks.labels else ((), (), ())
    return bones, graph, Labels(kinds_, subjects, micros)


def _graph(tasks: _Tasks, places: Places, kinds: int) -> tuple[TaskGraph, Indices]:
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


_COMPUTE = ("forward", "backward", "update")


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
