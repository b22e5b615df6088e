"""Two plans beside each other. Enters: two simulated plans. Leaves: a `Contrast`: all in which they
differ, folded by repeated layers. What is printed of it is told by `differences`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from meshwright.cluster.model import Cluster
from meshwright.foundation.units import Seconds, counted, format_gibibytes
from meshwright.graph.layers import first_copies
from meshwright.graph.model import OperatorGraph
from meshwright.parallel.layout import Layout
from meshwright.plan.model import Plan
from meshwright.report.annotated import by_level, seatless
from meshwright.report.predictions import describe_machine
from meshwright.simulate.critical import critical_path
from meshwright.simulate.moves import ways_by_level
from meshwright.simulate.reductions import with_programs
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.stretches import by_category, stretches


class OptionChange(NamedTuple):
    """An option that differs, as text."""

    name: str
    one: str
    other: str


class LayoutChange(NamedTuple):
    """Units at one place of a repeated layer whose layouts differ alike."""

    unit: str
    """The first."""
    times: int
    one: str
    other: str


class ProgramChange(NamedTuple):
    """A reduction that is carried out differently, or that only one of the plans has."""

    over: str
    bytes: float
    one: str | None
    other: str | None


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
    programs: tuple[ProgramChange, ...]
    waits: tuple[tuple[str, Seconds, Seconds], ...]
    """By category what the steps wait for, that which differs most first."""

    @property
    def same(self) -> bool:
        """Whether nothing that is planned differs."""
        return not (
            self.graph or self.cluster or self.options or self.layouts or self.programs
        ) and self.alone == (0, 0)


def contrast(one: Simulation, other: Simulation) -> Contrast:
    """In what two simulated plans differ."""
    mine, theirs = set(one.plan.layout), set(other.plan.layout)
    return Contrast(
        one=one,
        other=other,
        graph=_graphs(one.plan.graph, other.plan.graph),
        cluster=_clusters(one.plan.cluster, other.plan.cluster),
        options=tuple(_options(one.plan, other.plan)),
        layouts=_layouts(one.plan, other.plan),
        alone=(len(mine - theirs), len(theirs - mine)),
        programs=_programs(one, other),
        waits=_waits(one, other),
    )


def _graphs(one: OperatorGraph, other: OperatorGraph) -> str | None:
    if one == other:
        return None
    words = []
    for graph in (one, other):
        inputs = ", ".join(map(str, graph.inputs))
        words.append(f"{graph.name} ({counted(len(graph.operators), 'operator')}, input {inputs})")
    both = {own.name for own in one.operators} & {own.name for own in other.operators}
    if words[0] == words[1]:
        return f"the graphs differ, with {len(both)} operators of one name: {words[0]}"
    return f"the graphs differ: {words[0]} and {words[1]}"


def _clusters(one: Cluster, other: Cluster) -> str | None:
    if one == other:
        return None
    words = [
        f"{describe_machine(own)} of {own.device.name} with {format_gibibytes(own.device.memory)}"
        for own in (one, other)
    ]
    if words[0] == words[1]:
        return f"the clusters differ in the rates of links or devices: both are {words[0]}"
    return f"the clusters differ: {words[0]} and {words[1]}"


def _options(one: Plan, other: Plan) -> Iterator[OptionChange]:
    theirs = msgspec.structs.asdict(other.options)
    for name, value in msgspec.structs.asdict(one.options).items():
        if value != theirs[name]:
            yield OptionChange(name, _text(value), _text(theirs[name]))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _layouts(one: Plan, other: Plan) -> tuple[LayoutChange, ...]:
    first = first_copies(one.graph)
    alike: dict[object, list[str]] = {}
    for name, layout in one.layout.items():
        theirs = other.layout.get(name)
        if theirs is not None and (layout != theirs or one.factors != other.factors):
            key = first.get(name, name), seatless(layout), seatless(theirs)
            alike.setdefault(key, []).append(name)
    found = []
    for names in alike.values():
        texts = [_laid(plan, names) for plan in (one, other)]
        if one.factors == other.factors and texts[0] == texts[1]:
            # Within a level only the order of the factors differs.
            texts = [str(plan.layout[names[0]]) for plan in (one, other)]
        if texts[0] != texts[1]:
            found.append(LayoutChange(names[0], len(names), *texts))
    return tuple(found)


def _laid(plan: Plan, names: list[str]) -> str:
    layouts: list[Layout] = [plan.layout[name] for name in names]
    return by_level(layouts, plan.cluster)


def _programs(one: Simulation, other: Simulation) -> tuple[ProgramChange, ...]:
    mine, theirs = _reductions(one), _reductions(other)
    found = [
        ProgramChange(over, size, mine.get((over, size)), theirs.get((over, size)))
        for over, size in {**mine, **theirs}
        if mine.get((over, size)) != theirs.get((over, size))
    ]
    return tuple(sorted(found, key=lambda own: -own.bytes))


def _reductions(own: Simulation) -> dict[tuple[str, float], str]:
    plan = with_programs(own.plan, own.problem)
    return {(ways_by_level(plan.cluster, it.over), it.bytes): it.program for it in plan.programs}


def _waits(one: Simulation, other: Simulation) -> tuple[tuple[str, Seconds, Seconds], ...]:
    both = [
        by_category(stretches(own, critical_path(own.problem.tasks, own.timeline)))
        for own in (one, other)
    ]
    nothing = Seconds(0.0)
    found = [
        (category, both[0].get(category, nothing), both[1].get(category, nothing))
        for category in {**both[0], **both[1]}
    ]
    return tuple(sorted(found, key=lambda own: -abs(own[2] - own[1])))
