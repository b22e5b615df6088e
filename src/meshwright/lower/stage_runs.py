"""Pipeline stages of a plan. Enters: layouts in the order of the graph, and options. Leaves: runs
of units on the same devices, and which of them each stage works through.

A stage is a set of devices; a run is units that follow each other on one stage. It does not know in
which order micro-batches go through them (`schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.plan.options import Options
from meshwright.sharding.layout import Layout

Stage = tuple[int | None, ...]
"""For each factor the coordinate at which a unit sits, or None if at all."""


class StageRun(NamedTuple):
    """Units that follow each other on one stage."""

    stage: Stage
    units: tuple[int, ...]


def runs_of(layouts: Sequence[Layout], options: Options) -> tuple[StageRun, ...]:
    """The runs in the order of the graph; with one micro-batch there is no pipeline, and one run.

    >>> first, second = Layout(("@0", "sample")), Layout(("@1", "sample"))
    >>> [run.units for run in runs_of([first, first, second], Options(micro_batches=2))]
    [(0, 1), (2,)]
    """
    numbers = range(len(layouts))
    if options.micro_batches == 1:
        return (StageRun((), tuple(numbers)),)
    known = {layout: layout.coordinates() for layout in set(layouts)}
    grouped = groupby(numbers, key=lambda number: known[layouts[number]])
    return tuple(StageRun(stage, tuple(units)) for stage, units in grouped)


def stages_of(runs: Sequence[StageRun], options: Options) -> dict[Stage, list[int]]:
    """For each stage the numbers of its runs, equally many for all, as the schedule needs them."""
    stages: dict[Stage, list[int]] = {}
    for number, run in enumerate(runs):
        stages.setdefault(run.stage, []).append(number)
    count = max(map(len, stages.values()))
    uneven = any(len(numbers) != count for numbers in stages.values())
    if uneven or (count > 1 and options.schedule != "interleaved"):
        raise InputError(
            f"the plan goes through its stages {count} times with schedule {options.schedule!r}",
            "put all units of a stage next to each other, or, for 'interleaved', equally many runs "
            "on every stage",
        )
    return stages
