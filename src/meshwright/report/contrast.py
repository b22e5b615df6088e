"""Diff of two simulated plans: options, layouts and collectives. Enters: two simulated plans.
Leaves: a `Contrast`: all in which they differ, folded by repeated layers. What is printed of it is
told by `differences`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from meshwright.base.quantities import Seconds, counted, format_gibibytes
from meshwright.cluster.cluster import Cluster
from meshwright.explain.critical_path import PathPiece, critical_path
from meshwright.explain.exposed import collective_costs
from meshwright.explain.path_breakdown import by_category, stretches
from meshwright.graph.layers import first_copies
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import LAYERWISE
from meshwright.plan.plan import Plan
from meshwright.report.annotated import by_level, op_group_range, roles_without_coordinates
from meshwright.report.outline import stages_of
from meshwright.report.predictions import describe_machine
from meshwright.sharding.layout import Layout
from meshwright.simulate.simulation import Simulation


class OptionChange(NamedTuple):
    """An option that differs, as text."""

    name: str
    one: str
    other: str


class LayoutChange(NamedTuple):
    """Units whose layouts differ alike."""

    first: str
    last: str
    """The last that stands in a row with the first in one copy of a layer."""
    units: int
    """How many stand in a row."""
    times: int
    """In how many copies of a layer."""
    one: str
    other: str

    @property
    def name(self) -> str:
        """The units in words."""
        return op_group_range(self.first, self.last, self.units)


class Amount(NamedTuple):
    """How often a collective runs in a step, and how long all times take together."""

    times: int
    seconds: Seconds


class CollectiveChange(NamedTuple):
    """A collective, with sums by their program, that one plan has more of than the other."""

    operation: str
    over: str
    purpose: str
    program: str
    one: Amount
    other: Amount


NOTHING = Amount(0, Seconds(0.0))


class Contrast(NamedTuple):
    """Two plans, and in what they differ."""

    one: Simulation
    other: Simulation
    graph: str | None
    """In what the graphs differ, in a sentence; None if they are the same."""
    cluster: str | None
    """The same of the clusters."""
    options: tuple[OptionChange, ...]
    layouts: tuple[LayoutChange, ...]
    """Of units that both have."""
    alone: tuple[int, int]
    """Units that only one of them has."""
    collectives: tuple[CollectiveChange, ...]
    """Those whose times differ most first."""
    waits: tuple[tuple[str, Seconds, Seconds], ...]
    """By category what the steps wait for, that which differs most first."""

    @property
    def same(self) -> bool:
        """Whether nothing that is planned differs."""
        differences = self.graph, self.cluster, self.options, self.layouts, self.collectives
        return not any(differences) and self.alone == (0, 0)


def contrast(one: Simulation, other: Simulation) -> Contrast:
    """In what two simulated plans differ."""
    mine, theirs = set(one.plan.layout), set(other.plan.layout)
    paths = [
        critical_path(simulation.problem.tasks, simulation.timeline) for simulation in (one, other)
    ]
    return Contrast(
        one=one,
        other=other,
        graph=_graphs(one.plan.graph, other.plan.graph),
        cluster=_clusters(one.plan.cluster, other.plan.cluster),
        options=tuple(_options(one.plan, other.plan)),
        layouts=_layouts(one.plan, other.plan),
        alone=(len(mine - theirs), len(theirs - mine)),
        collectives=_collectives(
            *(
                _amounts(simulation, path)
                for simulation, path in zip((one, other), paths, strict=True)
            )
        ),
        waits=_waits(
            *(
                by_category(stretches(simulation, path))
                for simulation, path in zip((one, other), paths, strict=True)
            )
        ),
    )


def _graphs(one: OperatorGraph, other: OperatorGraph) -> str | None:
    if one == other:
        return None
    words = []
    for graph in (one, other):
        inputs = ", ".join(map(str, graph.inputs))
        words.append(f"{graph.name} ({counted(len(graph.operators), 'operator')}, input {inputs})")
    both = {operator.name for operator in one.operators} & {
        operator.name for operator in other.operators
    }
    if words[0] == words[1]:
        return f"the graphs differ, with {len(both)} operators of one name: {words[0]}"
    return f"the graphs differ: {words[0]} and {words[1]}"


def _clusters(one: Cluster, other: Cluster) -> str | None:
    if one == other:
        return None
    words = [
        f"{describe_machine(side)} of {side.device.name} "
        f"with {format_gibibytes(side.device.memory)}"
        for side in (one, other)
    ]
    if words[0] == words[1]:
        return f"the clusters differ in the rates of links or devices: both are {words[0]}"
    return f"the clusters differ: {words[0]} and {words[1]}"


def _options(one: Plan, other: Plan) -> Iterator[OptionChange]:
    mine, theirs = (
        {"stages": stages_of(plan)}
        | msgspec.structs.asdict(plan.options)
        | {"backend": plan.backend}
        for plan in (one, other)
    )
    for name, value in mine.items():
        if value != theirs[name]:
            yield OptionChange(name, _text(name, value), _text(name, theirs[name]))


def _text(name: str, value: object) -> str:
    if name == "bucket" and value == LAYERWISE:
        return "each layer"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _layouts(one: Plan, other: Plan) -> tuple[LayoutChange, ...]:
    first = first_copies(one.graph)
    alike: dict[object, list[str]] = {}
    for name, layout in one.layout.items():
        theirs = other.layout.get(name)
        if theirs is not None and (layout != theirs or one.factors != other.factors):
            key = (
                first.get(name, name),
                roles_without_coordinates(layout),
                roles_without_coordinates(theirs),
            )
            alike.setdefault(key, []).append(name)
    changes = []
    for names in alike.values():
        texts = [_laid(plan, names) for plan in (one, other)]
        if one.factors == other.factors and texts[0] == texts[1]:
            # Within a level only the order of the factors differs.
            texts = [str(plan.layout[names[0]]) for plan in (one, other)]
        if texts[0] != texts[1]:
            changes.append(LayoutChange(names[0], names[0], 1, len(names), *texts))
    return tuple(changes)


def merge_adjacent_changes(changes: Iterable[LayoutChange]) -> Iterator[LayoutChange]:
    """Changes, those in a row that are alike joined."""
    for _, alike in groupby(changes, key=lambda change: (change.times, change.one, change.other)):
        row = list(alike)
        units = sum(change.units for change in row)
        yield row[0]._replace(last=row[-1].last, units=units)


def _laid(plan: Plan, names: list[str]) -> str:
    layouts: list[Layout] = [plan.layout[name] for name in names]
    return by_level(layouts, plan.cluster)


_Key = tuple[str, str, str, str]
"""An operation, its members, what it moves, its program."""


def _amounts(simulation: Simulation, path: Sequence[PathPiece]) -> dict[_Key, Amount]:
    amounts: dict[_Key, Amount] = {}
    for it in collective_costs(simulation, path):
        key = it.operation, it.over, it.purpose, it.program or ""
        before = amounts.get(key, NOTHING)
        seconds = Seconds(before.seconds + it.seconds)
        amounts[key] = Amount(before.times + it.times, seconds)
    return amounts


def _collectives(
    one: Mapping[_Key, Amount], other: Mapping[_Key, Amount]
) -> tuple[CollectiveChange, ...]:
    changes = [
        CollectiveChange(*key, one.get(key, NOTHING), other.get(key, NOTHING))
        for key in {**one, **other}
        if one.get(key) != other.get(key)
    ]
    return tuple(
        sorted(changes, key=lambda change: -abs(change.other.seconds - change.one.seconds))
    )


def _waits(
    one: Mapping[str, Seconds], other: Mapping[str, Seconds]
) -> tuple[tuple[str, Seconds, Seconds], ...]:
    waits = [
        (category, one.get(category, NOTHING.seconds), other.get(category, NOTHING.seconds))
        for category in {**one, **other}
    ]
    return tuple(sorted(waits, key=lambda wait: -abs(wait[2] - wait[1])))
