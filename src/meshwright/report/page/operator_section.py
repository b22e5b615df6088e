"""Operator graph of the HTML report, folded by repeated layers. Enters: a simulated plan. Leaves:
blocks of units for graph.js, which shows every operator once, in the copy of the layer that it lies
in.

Copies of a layer in a row whose layouts differ at most in where they sit are one block, as in
`report.annotated`. What a unit costs is the cost of its operators together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from meshwright.explain.utilisation import time_by_op_group
from meshwright.graph.layers import layer_of
from meshwright.graph.operator_graph import Operator
from meshwright.plan.plan import Plan
from meshwright.report.annotated import by_level
from meshwright.report.documents import Document
from meshwright.sharding.layout import IDLE, Layout
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.simulation import Simulation


class Block(NamedTuple):
    """Copies of a layer, each as the numbers of its units; one copy if nothing repeats."""

    copies: tuple[tuple[int, ...], ...]


def blocks(plan: Plan) -> Iterator[Block]:
    """All units, in order.

    What lies between repeated layers is one block.
    """
    layer = layer_of(plan.graph)
    numbered = enumerate(plan.units)
    runs = groupby(numbered, key=lambda it: layer.get(it[1].name))
    copies = [(key, tuple(number for number, _ in run)) for key, run in runs]

    def alike(copy: tuple[tuple[int, int] | None, tuple[int, ...]]) -> tuple[object, ...]:
        key, numbers = copy
        if key is None:
            return (numbers[0],)
        units = [plan.units[number] for number in numbers]
        calls = [tuple(member.call for member in unit.members) for unit in units]
        return key[0], *calls, *(_seatless(plan.layout[unit.name]) for unit in units)

    for _, same in groupby(copies, key=alike):
        repeats = list(same)
        yield Block(tuple(numbers for _, numbers in repeats))


def _seatless(layout: Layout) -> tuple[str, ...]:
    return tuple(IDLE if role.startswith(IDLE) else role for role in layout.roles)


def pattern(names: Sequence[str]) -> str:
    """Names of the same place in several copies; where they differ stands a star.

    >>> pattern(["layers.0.norm", "layers.1.norm"]), pattern(["a_1", "a_12"])
    ('layers.*.norm', 'a_*')
    """
    words = [re.split(r"(\d+)", name) for name in names]
    if len({len(pieces) for pieces in words}) > 1:
        return names[0]
    columns = [set(column) for column in zip(*words, strict=True)]
    return "".join(next(iter(column)) if len(column) == 1 else "*" for column in columns)


def graph_document(simulation: Simulation) -> Document:
    """What graph.js shows."""
    plan, operators = (
        simulation.plan,
        {operator.name: operator for operator in simulation.plan.graph.operators},
    )
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    units = []
    for unit, spent in zip(plan.units, time_by_op_group(simulation), strict=True):
        layout = by_level([plan.layout[unit.name]], plan.cluster)
        members = [_member(operators[member.operator], number) for member in unit.members]
        times = [round(seconds * NANO) for seconds in (spent.computing, spent.moving)]
        units.append([number(layout), *times, members])
    documents = [
        {"copies": block.copies, "names": _patterns(plan, block)} for block in blocks(plan)
    ]
    step = simulation.timeline.makespan
    return {"step": step, "texts": list(texts), "units": units, "blocks": documents}


def _member(operator: Operator, number: Callable[[str], int]) -> list[str | int]:
    """The name, what it computes and what it makes."""
    texts = [
        f"{tensor.dtype} {' × '.join(map(str, tensor.shape)) or '1'}" for tensor in operator.outputs
    ]
    shapes = ", ".join(
        f"{len(list(same))} of {text}" if texts.count(text) > 1 else text
        for text, same in groupby(texts)
    )
    return [operator.name, number(operator.kind), number(shapes)]


def _patterns(plan: Plan, block: Block) -> list[list[str]]:
    """For every unit of a copy the names of its operators in all copies."""
    if len(block.copies) == 1:
        return []
    return [
        [
            pattern([member.operator for member in members])
            for members in zip(*(plan.units[number].members for number in place), strict=True)
        ]
        for place in zip(*block.copies, strict=True)
    ]
