"""Pipeline schedules as edges of the task graph. Enters: units, their layouts, a schedule. Leaves:
the edges that make each stage work through its micro-batches in the schedule's order, and those
that make it fetch sharded parameters not too early.

A chunk is one of the runs of units that a stage works through (`script.runs`). With one stage and
several micro-batches gradients accumulate: forward, backward, forward, backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.lower.bundles import TensorEdge
from meshwright.lower.prefetch import AHEAD
from meshwright.lower.schedule import Slot, order
from meshwright.lower.stage_runs import Stage, StageRun, runs_of, stages_of
from meshwright.plan.options import Options
from meshwright.sharding.layout import Layout
from meshwright.sharding.unit import OpGroup

Label = tuple[str, int, int]
"""Of a task: its kind, the number of its unit, its micro-batch."""

Ends = Mapping[tuple[str, int], tuple[list[int], list[int]]]
"""For each pass and chunk the units with which it begins and with which it ends."""


def chained(
    units: Sequence[OpGroup],
    layouts: Sequence[Layout],
    bundles: Sequence[TensorEdge],
    options: Options,
) -> Iterator[tuple[Label, Label]]:
    """Edges from the last tasks of a stage's slot to the first ones of its next slot."""
    if options.micro_batches == 1:
        return
    for stage in slots_of_stages(units, layouts, bundles, options):
        for before, after in pairwise(stage.slots):
            for last in tasks_of(before, stage.ends, first=False):
                for first in tasks_of(after, stage.ends, first=True):
                    yield last, first


class StageSlots(NamedTuple):
    """What a stage works through."""

    runs: tuple[int, ...]
    """The numbers of its chunks in the order of the graph."""
    chunks: tuple[tuple[int, ...], ...]
    """The units of each."""
    ends: Ends
    slots: tuple[Slot, ...]


def slots_of_stages(
    units: Sequence[OpGroup],
    layouts: Sequence[Layout],
    bundles: Sequence[TensorEdge],
    options: Options,
) -> Iterator[StageSlots]:
    """The slots of each stage. With one micro-batch there is no pipeline, and units that sit at the
    same coordinates are a stage by themselves.
    """
    readers = _readers(bundles)
    pipelined = options.micro_batches > 1
    runs = runs_of(layouts, options) if pipelined else _sitting_alike(layouts)
    stages = stages_of(runs, options)
    for place, numbers in enumerate(stages.values()):
        chunks = tuple(runs[number].units for number in numbers)
        ends: Ends = {
            ("forward", chunk): _ends(run, readers) for chunk, run in enumerate(chunks)
        } | {
            # The backward pass begins where the forward pass ends; not every unit has one.
            ("backward", chunk): _ends([u for u in run if units[u].flows], readers)[::-1]
            for chunk, run in enumerate(chunks)
        }
        count, at = (len(stages), place) if pipelined else (1, 0)
        slots = order(options.schedule, count, at, options.micro_batches, len(chunks))
        yield StageSlots(tuple(numbers), chunks, ends, slots)


def _sitting_alike(layouts: Sequence[Layout]) -> tuple[StageRun, ...]:
    """The units at each set of coordinates, wherever in the graph they are."""
    alike: dict[Stage, list[int]] = {}
    for number, layout in enumerate(layouts):
        alike.setdefault(layout.coordinates(), []).append(number)
    return tuple(StageRun(stage, tuple(numbers)) for stage, numbers in alike.items())


def ahead(
    units: Sequence[OpGroup],
    layouts: Sequence[Layout],
    bundles: Sequence[TensorEdge],
    options: Options,
) -> Iterator[tuple[Label, Label]]:
    """What fetching the parameters of a bundle waits for: it begins together with the use AHEAD
    before its own, so once the one before that is over.
    """
    opening, closing = _uses(units, bundles)
    runs = runs_of(layouts, options)
    stages = stages_of(runs, options)
    for place, numbers in enumerate(stages.values()):
        used: list[Label] = []
        for slot in order(
            options.schedule, len(stages), place, options.micro_batches, len(numbers)
        ):
            forward, run = slot.pass_ == "forward", runs[numbers[slot.chunk]].units
            uses, fetch = (opening, "carry") if forward else (closing, "again")
            for unit in filter(uses.__contains__, run if forward else reversed(run)):
                for bundle in uses[unit] if len(used) > AHEAD else ():
                    yield used[-1 - AHEAD], (fetch, bundle, slot.micro_batch)
                used.append((slot.pass_, unit, slot.micro_batch))


def _uses(
    units: Sequence[OpGroup], bundles: Sequence[TensorEdge]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The parameters that each unit is the first to use, in either pass."""
    opening: dict[int, list[int]] = {}
    closing: dict[int, list[int]] = {}
    for number, bundle in enumerate(bundles):
        if bundle.parameters:
            returning = [
                consumer.unit
                for consumer in bundle.consumers
                if consumer.boundary.backward and units[consumer.unit].flows
            ]
            opening.setdefault(min(consumer.unit for consumer in bundle.consumers), []).append(
                number
            )
            if returning:
                closing.setdefault(max(returning), []).append(number)
    return opening, closing


def _readers(bundles: Sequence[TensorEdge]) -> dict[int, set[int]]:
    readers: dict[int, set[int]] = {}
    for bundle in bundles:
        if not bundle.parameters:
            readers.setdefault(bundle.maker, set()).update(
                consumer.unit for consumer in bundle.consumers
            )
    return readers


def _ends(run: Sequence[int], readers: dict[int, set[int]]) -> tuple[list[int], list[int]]:
    """The units of a run that read nothing of it, and those that nothing of it reads."""
    inside = set(run)
    read = {reader for unit in run for reader in readers.get(unit, ()) if reader in inside}
    first = [unit for unit in run if unit not in read]
    last = [unit for unit in run if not readers.get(unit, set()) & inside]
    return first, last


def tasks_of(slot: Slot, ends: Ends, *, first: bool) -> Iterator[Label]:
    """The compute tasks that a slot begins or ends with."""
    opening, closing = ends[slot.pass_, slot.chunk]
    for unit in opening if first else closing:
        yield slot.pass_, unit, slot.micro_batch
