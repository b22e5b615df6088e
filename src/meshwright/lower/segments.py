"""Units that a device runs in one go. Enters: wiring. Leaves: `Segment`s, in the graph's order.

Inside of a segment nothing moves between devices, so that its backward pass is one call of the
library's. A segment ends where something moves, where the devices change, where a layer ends that
runs again, and when the gradients that it leaves are worth being sent on their way.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.units import Bytes
from meshwright.lower.dataflow import Dataflow
from meshwright.lower.schedule_merge import parts_of

WORTHWHILE = Bytes(1 << 18)
"""Gradients of so many bytes begin their way while the rest is still computed."""

Layer = tuple[int, int]
"""A repeated layer that runs again: the repeat and the copy."""


class Segment(NamedTuple):
    """Units next to each other, on the same devices."""

    part: int
    units: tuple[int, ...]
    layer: Layer | None
    """The layer that runs again with it."""


def segments(wiring: Dataflow) -> tuple[Segment, ...]:
    """The segments of a plan."""
    found: list[Segment] = []
    for part, units in enumerate(parts_of(wiring.plan)):
        draft: list[int] = []
        for unit in units:
            if draft and not _joins(wiring, draft, unit):
                found.append(_finished(wiring, part, draft))
                draft = []
            draft.append(unit)
        found.append(_finished(wiring, part, draft))
    return tuple(found)


def _finished(wiring: Dataflow, part: int, units: list[int]) -> Segment:
    return Segment(part, tuple(units), _layer(wiring, units[0]))


def _layer(wiring: Dataflow, unit: int) -> Layer | None:
    plan = wiring.plan
    return plan.options.runs_again(plan.graph).get(plan.units[unit].name)


def _joins(wiring: Dataflow, draft: list[int], unit: int) -> bool:
    """Whether a unit can go on where a draft stops."""
    last, tasks = draft[-1], wiring.tasks
    if tasks[last].place != tasks[unit].place or _layer(wiring, last) != _layer(wiring, unit):
        return False
    least = max(wiring.plan.options.bucket, WORTHWHILE)
    if sum(_gradient_bytes(wiring, own) for own in draft) >= least:
        return False
    return not any(_moves(wiring, draft, unit, index) for index in _ports(wiring, unit))


def _ports(wiring: Dataflow, unit: int) -> range:
    return range(len(wiring.plan.units[unit].inputs))


def _gradient_bytes(wiring: Dataflow, unit: int) -> int:
    """Of the parameters whose gradients have to be summed with those of other devices."""
    total = 0
    for index, port in enumerate(wiring.plan.units[unit].inputs):
        back = wiring.readings[unit, index].return_
        if back is not None and wiring.made[port.tensor].parameter and wiring.returns[back].steps:
            total += port.bytes
    return total


def _moves(wiring: Dataflow, draft: list[int], unit: int, index: int) -> bool:
    """Whether what a unit gets through a port comes from the draft, and over the network."""
    reading = wiring.readings[unit, index]
    made = wiring.made[wiring.plan.units[unit].inputs[index].tensor]
    if made.parameter or made.unit not in draft:
        return False
    back = reading.return_
    return bool(
        wiring.deliveries[reading.delivery].steps
        or (back is not None and wiring.returns[back].steps)
    )
