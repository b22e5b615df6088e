"""Gantt chart of a simulated step: compute streams and links. Enters: a simulated plan. Leaves:
rows of spans in nanoseconds: a row for each device that does something of its own, and for each
link of it.

    `rows_of`     what the simulation says; devices and links that do the same are one row
    `coarsen_spans`     spans in a row of one kind joined until few enough; no time is lost
    `document`    columns of whole numbers for the page
What tasks mean is told by `simulate.costs`; how rows are drawn, by timeline.js.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from meshwright.explain.utilisation import resources_of_devices, subject_of, uses
from meshwright.report.documents import Document
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import Simulation

KINDS = {
    "forward": "forward pass",
    "backward": "backward pass",
    "update": "optimizer",
    "carry": "tensors to their readers",
    "return": "gradients back",
    "again": "parameters fetched again",
    "regather": "updated parameters gathered",
}
"""In the order of `Labels.kind`, for people."""

NUMBER = {kind: number for number, kind in enumerate(KINDS)}

SEVERAL = -1
"""The label of spans that were joined."""

MOST_SPANS = 250_000
MOST_ROWS = 60


class TimelineSpan(NamedTuple):
    """A task on a resource; `label` is that of what it does."""

    start: int
    hold: int
    kind: int
    label: int
    micro_batch: int


class TimelineRow(NamedTuple):
    """A resource, or several that do the same."""

    name: str
    what: str
    """compute, or the level and the name of the link."""
    alike: int
    """How many resources of the machine it stands for."""
    spans: tuple[TimelineSpan, ...]

    @property
    def held(self) -> int:
        """Nanoseconds in all."""
        return sum(span.hold for span in self.spans)


class TimelineRows(NamedTuple):
    """All rows, and what labels mean."""

    rows: tuple[TimelineRow, ...]
    labels: tuple[tuple[int, str], ...]
    """The kind of each, and what it is about."""
    left_out: int
    """Rows that are too many for a page."""


def rows_of(simulation: Simulation) -> TimelineRows:
    """Every resource that is ever held, once for all that do the same."""
    problem = simulation.problem
    labels: dict[tuple[str, int], int] = {}
    spans: dict[int, list[TimelineSpan]] = {}
    kinds, subjects, micro = problem.labels
    for use in uses(problem.tasks, simulation.timeline):
        key = kinds[use.task], subjects[use.task]
        label = labels.setdefault(key, len(labels))
        span = TimelineSpan(use.start, use.hold, NUMBER[key[0]], label, micro[use.task])
        spans.setdefault(use.resource, []).append(span)
    rows = _merged(problem, {r: tuple(row_spans) for r, row_spans in spans.items()})
    texts = tuple((NUMBER[kind], subject_of(problem, kind, subject)) for kind, subject in labels)
    return TimelineRows(tuple(rows[:MOST_ROWS]), texts, max(0, len(rows) - MOST_ROWS))


def _merged(problem: StepModel, spans: dict[int, tuple[TimelineSpan, ...]]) -> list[TimelineRow]:
    """A row for each resource in the order of devices; those that do the same are one."""
    devices = resources_of_devices(problem)
    merged: dict[tuple[int, tuple[TimelineSpan, ...]], list[int]] = {}
    for stream, links in devices:
        for resource in (stream, *links):
            if resource in spans:
                key = int(problem.places.kind[resource]), spans[resource]
                merged.setdefault(key, []).append(resource)
    alike = problem.cluster.devices // len(devices)
    return [
        TimelineRow(
            name=problem.places.names[resources[0]],
            what=problem.prices.kinds[kind],
            alike=len(resources) * alike if not kind else len(resources),
            spans=same_spans,
        )
        for (kind, same_spans), resources in merged.items()
    ]


def coarsen_spans(
    rows: Sequence[TimelineRow], most: int = MOST_SPANS
) -> tuple[tuple[TimelineRow, ...], int]:
    """At most so many spans: neighbours of one kind that are shorter than the nanoseconds told
    beside are one, as long as all of them.
    """
    coarse, shortest = tuple(rows), 0
    longest = max((span.hold for row in rows for span in row.spans), default=0)
    while sum(len(row.spans) for row in coarse) > most and shortest <= longest:
        shortest = max(1, 2 * shortest)
        coarse = tuple(row._replace(spans=_joined(row.spans, shortest)) for row in rows)
    return coarse, shortest


def _joined(spans: Iterable[TimelineSpan], shortest: int) -> tuple[TimelineSpan, ...]:
    merged: list[TimelineSpan] = []
    for (kind, short), run in groupby(spans, key=lambda span: (span.kind, span.hold < shortest)):
        neighbours = list(run)
        if short and len(neighbours) > 1:
            total = sum(span.hold for span in neighbours)
            merged.append(TimelineSpan(neighbours[0].start, total, kind, SEVERAL, 0))
        else:
            merged += neighbours
    return tuple(merged)


def timeline_document(simulation: Simulation) -> Document:
    """What timeline.js draws: for each span the gap since the last one's end, and how long."""
    timeline = rows_of(simulation)
    rows, shortest = coarsen_spans(timeline.rows)
    return {
        "step": simulation.timeline.makespan,
        "kinds": list(KINDS.values()),
        "labels": [list(label) for label in timeline.labels],
        "rows": [_row(row) for row in rows],
        "leftOut": timeline.left_out,
        "joinedBelow": shortest,
        "microBatches": simulation.plan.options.micro_batches,
    }


def _row(row: TimelineRow) -> Document:
    ends = [0, *(span.start + span.hold for span in row.spans)]
    return {
        "name": row.name,
        "what": row.what,
        "alike": row.alike,
        "gap": [span.start - end for span, end in zip(row.spans, ends, strict=False)],
        "hold": [span.hold for span in row.spans],
        "kind": [span.kind for span in row.spans],
        "label": [span.label for span in row.spans],
        "micro": [span.micro_batch for span in row.spans],
    }
