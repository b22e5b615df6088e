"""Collective implementations as alpha-beta cost lines, single or in sequence. Enters: cost lines of
single collectives, priced programs. Leaves: `CollectiveWay`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.collectives.dsl import Program
from meshwright.collectives.predict import PricedProgram
from meshwright.collectives.synthesize import MoveSpace
from meshwright.cost.alpha_beta import CostLine, LostBandwidth
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.pattern import Pattern, concurrent, members


class CollectiveWay(NamedTuple):
    """One way to carry out an operation: seconds and bytes for each byte held by a member."""

    fixed: float
    slope: float
    busy: tuple[tuple[tuple[int, str], float], ...]
    moved: float
    """Bytes that leave a device, on the whole machine."""
    queues: bool = True
    """Whether it waits for its links and keeps others waiting."""
    lost: LostBandwidth = LostBandwidth()
    program: Program | None = None
    steps: tuple[tuple[int, ...], ...] = ()
    """Of several of its kind, one after the other: which of the factors, counted from the first,
    each is along."""


def chained(steps: Sequence[tuple[CostLine, float, float]]) -> CollectiveWay:
    """Lines one after the other, each at a share of the bytes and with what it moves of them."""
    busy: dict[tuple[int, str], float] = {}
    for line, share, _ in steps:
        for place, slope in line.busy:
            busy[place] = busy.get(place, 0.0) + slope * share
    return CollectiveWay(
        fixed=sum(line.fixed for line, _, _ in steps),
        slope=sum(line.per_byte * share for line, share, _ in steps),
        busy=tuple(sorted(busy.items())),
        moved=sum(moved * share for _, share, moved in steps),
        lost=LostBandwidth(
            sum(line.lost.fixed for line, _, _ in steps),
            sum(line.lost.per_byte * share for line, share, _ in steps),
        ),
    )


def scaled(way: CollectiveWay, left: float) -> CollectiveWay:
    """A way of which a share of the bytes is waited for."""
    if left == 1.0:
        return way
    busy = tuple((place, slope * left) for place, slope in way.busy)
    return way._replace(slope=way.slope * left, busy=busy)


def way_of_program(space: MoveSpace, priced: PricedProgram, payload: float) -> CollectiveWay:
    """The steps of a reduction program that was priced at a payload."""
    steps = []
    for step in priced.steps:
        move = space.move(step.instruction)
        moved = bytes_moved(move.collective, space.pattern(move.groups))
        steps.append((step.line, step.held / payload, moved))
    return chained(steps)._replace(program=priced.program)


def bytes_moved(kind: Operation, pattern: Pattern) -> float:
    """Bytes that leave a device on the whole machine, for each byte that a member holds."""
    n = math.prod(map(members, pattern))
    groups = math.prod(map(concurrent, pattern))
    each = {
        Collective.ALL_REDUCE: 2 * (n - 1),
        Collective.REDUCE_SCATTER: n - 1,
        Collective.ALL_GATHER: n * (n - 1),
        Collective.REDUCE: n - 1,
        Collective.BROADCAST: n - 1,
        Movement.ALL_TO_ALL: n - 1,
        Movement.SCATTER: (n - 1) / n,
        Movement.GATHER: n - 1,
        Movement.SEND: 1,
        Movement.SHIFT: n - 1,
    }
    return groups * each[kind]
