"""Sequence sharding (SP, CP): the split of each op group that cuts positions. Enters: units.
Leaves: for each unit that has one its number.

Attention has it: "query", or the rows of its scores (`facts.attended`). From there it is followed
along the wires, forwards and backwards: a unit takes part if under one split it takes, and makes,
all the pieces beside it as they are. Keys and values are needed whole by every piece of the
queries; they are gathered in front of attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.baselines.degrees.facts import attended, attends
from meshwright.baselines.roles import named_split
from meshwright.sharding.states import State
from meshwright.sharding.unit import OpGroup


def sequence_splits(parts: Sequence[OpGroup]) -> dict[int, int]:
    """The units that can be cut along positions, with their splits, both by number."""
    splits: dict[int, int] = {}
    cut: dict[str, State] = {}
    for number, unit in enumerate(parts):
        _, name = attended(unit.extents)
        query = named_split(unit, name)
        if attends(unit) and query is not None:
            _take(unit, number, query, splits, cut)
    before = -1
    while before < len(splits):
        before = len(splits)
        for numbers in (range(len(parts)), reversed(range(len(parts)))):
            for number in numbers:
                split = None if number in splits else _following(parts[number], cut)
                if split is not None:
                    _take(parts[number], number, split, splits, cut)
    return splits


def _following(unit: OpGroup, cut: dict[str, State]) -> int | None:
    """The split under which all that is cut beside a unit is as it needs or makes it."""
    beside = [boundary for boundary in (*unit.inputs, *unit.outputs) if boundary.tensor in cut]
    others = [number for number in range(len(unit.splits)) if number != unit.samples]
    for number in others if beside else ():
        if all(boundary.forward[number] == cut[boundary.tensor] for boundary in beside):
            return number
    return None


def _take(
    unit: OpGroup, number: int, split: int, splits: dict[int, int], cut: dict[str, State]
) -> None:
    splits[number] = split
    for boundary in (*unit.inputs, *unit.outputs):
        if boundary.forward[split] >= 0:
            cut.setdefault(boundary.tensor, boundary.forward[split])
