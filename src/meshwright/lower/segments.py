"""Execution segments: runs of op groups without communication in between. Enters: a
`ParallelGraph`. Leaves: `Segment`s, in the graph's order.

Inside of a segment nothing moves between devices, so that its backward pass is one call of the
library's. A segment ends where something moves, where the devices change, where a layer ends that
runs again, and when the gradients that it leaves are worth being sent on their way.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.quantities import Bytes
from meshwright.lower.parallel_graph import ParallelGraph
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


def segments(parallel: ParallelGraph) -> tuple[Segment, ...]:
    """The segments of a plan."""
    finished: list[Segment] = []
    for part, units in enumerate(parts_of(parallel.plan)):
        draft: list[int] = []
        for unit in units:
            if draft and not _joins(parallel, draft, unit):
                finished.append(_finished(parallel, part, draft))
                draft = []
            draft.append(unit)
        finished.append(_finished(parallel, part, draft))
    return tuple(finished)


def _finished(parallel: ParallelGraph, part: int, units: list[int]) -> Segment:
    return Segment(part, tuple(units), _layer(parallel, units[0]))


def _layer(parallel: ParallelGraph, unit: int) -> Layer | None:
    plan = parallel.plan
    return plan.options.runs_again(plan.graph).get(plan.units[unit].name)


def _joins(parallel: ParallelGraph, draft: list[int], unit: int) -> bool:
    """Whether a unit can go on where a draft stops."""
    last, tasks = draft[-1], parallel.tasks
    if tasks[last].place != tasks[unit].place or _layer(parallel, last) != _layer(parallel, unit):
        return False
    least = max(parallel.plan.options.bucket, WORTHWHILE)
    if sum(_gradient_bytes(parallel, drafted) for drafted in draft) >= least:
        return False
    return not any(_moves(parallel, draft, unit, index) for index in _ports(parallel, unit))


def _ports(parallel: ParallelGraph, unit: int) -> range:
    return range(len(parallel.plan.units[unit].inputs))


def _gradient_bytes(parallel: ParallelGraph, unit: int) -> int:
    """Of the parameters whose gradients have to be summed with those of other devices."""
    total = 0
    for index, boundary in enumerate(parallel.plan.units[unit].inputs):
        return_number = parallel.readings[unit, index].return_
        if (
            return_number is not None
            and parallel.made[boundary.tensor].parameter
            and parallel.returns[return_number].steps
        ):
            total += boundary.bytes
    return total


def _moves(parallel: ParallelGraph, draft: list[int], unit: int, index: int) -> bool:
    """Whether what a unit gets through a port comes from the draft, and over the network."""
    reading = parallel.readings[unit, index]
    tensor = parallel.made[parallel.plan.units[unit].inputs[index].tensor]
    if tensor.parameter or tensor.unit not in draft:
        return False
    return_number = reading.return_
    return bool(
        parallel.deliveries[reading.delivery].steps
        or (return_number is not None and parallel.returns[return_number].steps)
    )
