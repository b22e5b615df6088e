"""In which order a whole machine works. Enters: a plan. Leaves: slots in one order for everybody.

Every device does its part of the slots in this order, so that no two wait for each other. A part is
a run of units that sit on the same devices; with one micro-batch the whole graph is one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from meshwright.foundation.errors import InputError
from meshwright.plan.model import Options, Plan
from meshwright.script.schedule import Pass, Slot, order


class Turn(NamedTuple):
    """One micro-batch going through one part, there or back."""

    pass_: Pass
    part: int
    micro_batch: int


def parts_of(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The units of each part, in the order of the graph."""
    numbers = range(len(plan.units))
    if plan.options.micro_batches == 1:
        return (tuple(numbers),)
    sitting = [plan.layout[unit.name].coordinates() for unit in plan.units]
    return tuple(tuple(run) for _, run in groupby(numbers, key=sitting.__getitem__))


def turns(plan: Plan) -> tuple[Turn, ...]:
    """All turns, each after what it waits for, as early as its stage comes to it."""
    parts = parts_of(plan)
    stages: dict[object, list[int]] = {}
    for number, units in enumerate(parts):
        where = plan.layout[plan.units[units[0]].name].coordinates()
        stages.setdefault(where, []).append(number)
    queues = [
        [Turn(slot.pass_, own[slot.chunk], slot.micro_batch) for slot in slots]
        for own, slots in zip(stages.values(), _slots(plan.options, stages), strict=True)
    ]
    return _merged(queues, len(parts))


def _slots(options: Options, stages: dict[object, list[int]]) -> list[tuple[Slot, ...]]:
    chunks = {len(own) for own in stages.values()}
    if len(chunks) > 1 or (chunks > {1} and options.schedule != "interleaved"):
        raise InputError(
            f"the plan goes through its stages {max(chunks)} times with schedule "
            f"{options.schedule!r}",
            "put all units of a stage next to each other, or, for 'interleaved', equally many runs "
            "on every stage",
        )
    return [
        order(options.schedule, len(stages), place, options.micro_batches, max(chunks))
        for place in range(len(stages))
    ]


def _merged(queues: Sequence[list[Turn]], parts: int) -> tuple[Turn, ...]:
    """Round after round the next turn of every stage that waits for nothing."""
    done: set[Turn] = set()
    merged: list[Turn] = []
    following = [0] * len(queues)
    while len(merged) < sum(map(len, queues)):
        ready = [
            stage
            for stage, queue in enumerate(queues)
            if following[stage] < len(queue) and _free(queue[following[stage]], done, parts)
        ]
        assert ready, "the orders of the stages do not wait for each other in a circle"
        own = [queues[stage][following[stage]] for stage in ready]
        for stage in ready:
            following[stage] += 1
        merged += own
        done |= set(own)
    return tuple(merged)


def _free(turn: Turn, done: set[Turn], parts: int) -> bool:
    pass_, part, micro = turn
    if pass_ == "forward":
        return part == 0 or Turn("forward", part - 1, micro) in done
    after = Turn("backward", part + 1, micro) if part + 1 < parts else None
    return Turn("forward", part, micro) in done and (after is None or after in done)
