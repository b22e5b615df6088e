"""Global pipeline schedule: the orders of all stages merged into one deadlock-free order. Enters: a
plan. Leaves: slots in one order for everybody.

Every device does its part of the slots in this order, so that no two wait for each other. A part is
a run of units that sit on the same devices; with one micro-batch the whole graph is one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.lower.schedule import Pass, order
from meshwright.lower.stage_runs import StageRun, runs_of, stages_of
from meshwright.plan.plan import Plan


class ScheduleSlot(NamedTuple):
    """One micro-batch going through one part, there or back."""

    pass_: Pass
    part: int
    micro_batch: int


def parts_of(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The units of each part, in the order of the graph."""
    return tuple(run.units for run in _runs(plan))


def _runs(plan: Plan) -> tuple[StageRun, ...]:
    return runs_of([plan.layout[unit.name] for unit in plan.units], plan.options)


def turns(plan: Plan) -> tuple[ScheduleSlot, ...]:
    """All turns, each after what it waits for, as early as its stage comes to it."""
    runs, options = _runs(plan), plan.options
    stages = stages_of(runs, options)
    queues = [
        [
            ScheduleSlot(slot.pass_, chunks[slot.chunk], slot.micro_batch)
            for slot in order(
                options.schedule, len(stages), place, options.micro_batches, len(chunks)
            )
        ]
        for place, chunks in enumerate(stages.values())
    ]
    return _merged(queues, len(runs))


def _merged(queues: Sequence[list[ScheduleSlot]], parts: int) -> tuple[ScheduleSlot, ...]:
    """Round after round the next turn of every stage that waits for nothing."""
    done: set[ScheduleSlot] = set()
    merged: list[ScheduleSlot] = []
    following = [0] * len(queues)
    while len(merged) < sum(map(len, queues)):
        ready = [
            stage
            for stage, queue in enumerate(queues)
            if following[stage] < len(queue) and _free(queue[following[stage]], done, parts)
        ]
        assert ready, "the orders of the stages do not wait for each other in a circle"
        slots = [queues[stage][following[stage]] for stage in ready]
        for stage in ready:
            following[stage] += 1
        merged += slots
        done |= set(slots)
    return tuple(merged)


def _free(turn: ScheduleSlot, done: set[ScheduleSlot], parts: int) -> bool:
    pass_, part, micro = turn
    if pass_ == "forward":
        return part == 0 or ScheduleSlot("forward", part - 1, micro) in done
    after = ScheduleSlot("backward", part + 1, micro) if part + 1 < parts else None
    return ScheduleSlot("forward", part, micro) in done and (after is None or after in done)
