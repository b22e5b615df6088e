"""Annotated operator graph: every op group with its layout and its share of the step. Enters: a
simulated plan. Leaves: lines of a table, folded by repeated layers.

    copies      of a repeated layer in a row whose layouts differ at most in where they sit are one
    `_folded`   a line for each unit of a copy, with how many copies there are
    `_joined`   where that is too long: units in a row with one layout are one line
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.table import Table

from meshwright.base.integers import from_digits
from meshwright.base.quantities import counted
from meshwright.cluster.cluster import Cluster
from meshwright.explain.utilisation import TimeSpent, time_by_op_group
from meshwright.graph.layers import layer_of
from meshwright.report.terminal_tables import new_table
from meshwright.sharding.layout import IDLE, Layout, factors
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.simulation import Simulation


class AnnotatedLine(NamedTuple):
    """Units that are laid out alike."""

    first: str
    """The name of the first."""
    last: str
    """The name of the last that stands in a row with it in one copy of a layer."""
    units: int
    """How many stand in a row."""
    times: int
    """In how many copies of a layer."""
    layouts: tuple[Layout, ...]
    """All that differ; they differ in where they sit only."""
    computing: float
    moving: float
    """Shares of the step, over all copies; both may overlap with others."""

    @property
    def name(self) -> str:
        """The units in words.

        >>> AnnotatedLine("a.linear", "c.linear", 3, 1, (), 0.1, 0.0).name
        'a.linear ... c.linear (3 units)'
        """
        return op_group_range(self.first, self.last, self.units)


def op_group_range(first: str, last: str, units: int) -> str:
    """Units in a row, in words."""
    return first if units == 1 else f"{first} ... {last} ({units} units)"


def annotated(simulation: Simulation, most: int) -> list[AnnotatedLine]:
    """The lines of a plan's graph; units in a row are joined if that would be more than `most`."""
    lines = list(_folded(simulation))
    return lines if len(lines) <= most else list(_joined(lines))


def table_of_lines(lines: Sequence[AnnotatedLine], cluster: Cluster, most: int) -> Table:
    """The first lines of an annotated graph."""
    table = new_table("unit", "times>", "layout~", "computes>", "moves>")
    for line in lines[:most]:
        table.add_row(
            line.name,
            str(line.times),
            by_level(line.layouts, cluster),
            f"{line.computing:.1%}",
            f"{line.moving:.1%}" if line.moving else "",
        )
    return table


def describe_lines(lines: Sequence[AnnotatedLine], most: int) -> str:
    """What the table of lines shows, and what not."""
    text = "computes, moves: shares of the step, predicted; what overlaps counts twice."
    if len(lines) > most:
        text += f" {counted(len(lines) - most, 'more line')}: --top {len(lines)} shows all."
    return text


def by_level(layouts: Sequence[Layout], cluster: Cluster) -> str:
    """Layouts that differ in where they sit only, as degrees with roles by level.

    >>> cluster = Cluster.named("dgx-h100", node=4)
    >>> by_level([Layout.parse("@1 @0 channel channel sample")], cluster)
    'node: at 2 of 4 | gpu: channel 4, sample 2'
    """
    cluster_factors = factors(cluster)
    levels = []
    for depth, level in enumerate(cluster.levels):
        numbers = [number for number, factor in enumerate(cluster_factors) if factor.level == depth]
        if numbers:
            sizes = [cluster_factors[number].size for number in numbers]
            roles = [[layout.roles[number] for number in numbers] for layout in layouts]
            levels.append(f"{level.name}: {', '.join(_parts(roles, sizes))}")
    return " | ".join(levels) or "one device"


def _parts(roles: list[list[str]], sizes: list[int]) -> Iterator[str]:
    """What the factors of one level do."""
    ways: dict[str, int] = {}
    for role, size in zip(roles[0], sizes, strict=True):
        kind = IDLE if role.startswith(IDLE) else role
        ways[kind] = ways.get(kind, 1) * size
    for role, degree in ways.items():
        if role == IDLE:
            seats = sorted({_seat(layout_roles, sizes) for layout_roles in roles})
            yield f"at {_ranges(seats)} of {degree}"
        else:
            yield f"{role} {degree}"


def _seat(roles: list[str], sizes: list[int]) -> int:
    """The coordinate of an operator on the factors of a level that it sits on."""
    sat = [number for number, role in enumerate(roles) if role.startswith(IDLE)]
    return from_digits([int(roles[n][1:]) for n in sat], [sizes[n] for n in sat])


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers, those in a row by the first and the last.

    >>> _ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)


class _Placed(NamedTuple):
    """A unit with all that a line says of it."""

    unit: OpGroup
    layout: Layout
    spent: TimeSpent


def _folded(simulation: Simulation) -> Iterator[AnnotatedLine]:
    plan, step = simulation.plan, simulation.prediction.step
    layer = layer_of(plan.graph)
    placed = [
        _Placed(unit, plan.layout[unit.name], spent)
        for unit, spent in zip(plan.units, time_by_op_group(simulation), strict=True)
    ]
    copies = [list(run) for _, run in groupby(placed, key=lambda it: layer.get(it.unit.name))]

    def alike(copy: list[_Placed]) -> tuple[object, ...]:
        repeat = layer.get(copy[0].unit.name, (copy[0].unit.name, 0))[0]
        return repeat, *(
            (placement.unit.members[0].call, roles_without_coordinates(placement.layout))
            for placement in copy
        )

    for _, same in groupby(copies, key=alike):
        for units in zip(*same, strict=True):
            yield _line(units, step)


def roles_without_coordinates(layout: Layout) -> tuple[str, ...]:
    """A layout without where it sits."""
    return tuple(IDLE if role.startswith(IDLE) else role for role in layout.roles)


def _line(units: Sequence[_Placed], step: float) -> AnnotatedLine:
    name = units[0].unit.name
    return AnnotatedLine(
        first=name,
        last=name,
        units=1,
        times=len(units),
        layouts=tuple(dict.fromkeys(unit.layout for unit in units)),
        computing=math.fsum(unit.spent.computing for unit in units) / step,
        moving=math.fsum(unit.spent.moving for unit in units) / step,
    )


def _joined(lines: Iterable[AnnotatedLine]) -> Iterator[AnnotatedLine]:
    for (_, layouts), run in groupby(lines, key=lambda line: (line.times, line.layouts)):
        row = list(run)
        yield row[0]._replace(
            last=row[-1].last,
            units=sum(line.units for line in row),
            layouts=layouts,
            computing=math.fsum(line.computing for line in row),
            moving=math.fsum(line.moving for line in row),
        )
