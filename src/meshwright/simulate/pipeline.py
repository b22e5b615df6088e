"""One step of a pipeline as tasks. Enters: a schedule and its sizes; then nanoseconds. Leaves: a
`TaskGraph` at the granularity of (part, micro-batch).

Tasks of a stage follow one another in the order of `schedule`: each slot, then the transfer of
what it made to the stage of the next part, for which its stage waits; after the last one the
reduction of gradients; then, once all have reduced (the gradients' norm needs all), the update.
    a slot follows the transfer of its micro-batch, forward from the part before, backward from
    the part behind
    the backward of the last part follows its own forward
Slots, reductions and updates use their stage; transfers use a link for each pair of neighbouring
parts and direction. The graph of a shape is built once; `timed` gives it durations.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.lower.schedule import Schedule, Slot, order
from meshwright.simulate.tasks import NOWHERE, Indices, Ints, TaskGraph


class PipelineTask(enum.IntEnum):
    """What a task of a pipeline does; the first index of a table of durations."""

    FORWARD = 0
    BACKWARD = 1
    SEND = 2
    REDUCE = 3
    UPDATE = 4


class Pipeline(NamedTuple):
    """A step without durations."""

    graph: TaskGraph
    role: Indices
    """[n] the `PipelineTask` of each task."""
    part: Indices
    """[n] which part of the model it works on; for reductions and updates the stage."""


def timed(pipeline: Pipeline, nanoseconds: Ints) -> TaskGraph:
    """The step with the durations [5, parts] of each `PipelineTask` and part of the model."""
    duration = np.maximum(1, nanoseconds[pipeline.role, pipeline.part])
    kinds = pipeline.graph.hold.shape[1]
    sending = pipeline.role == PipelineTask.SEND
    hold = np.zeros((len(duration), kinds), np.int64)
    hold[:, 0] = np.where(sending, 0, duration)
    hold[:, 1] = np.where(sending, duration, 0)
    return pipeline.graph._replace(duration=duration, hold=hold)


@lru_cache(maxsize=256)
def pipeline(kind: Schedule, stages: int, micro_batches: int, chunks: int = 1) -> Pipeline:
    """The step of a schedule.

    >>> step = pipeline("1f1b", stages=2, micro_batches=1)
    >>> [PipelineTask(role).name for role in step.role][:5]  # those of stage 0
    ['FORWARD', 'SEND', 'BACKWARD', 'REDUCE', 'UPDATE']
    """
    draft = _Draft(stages, chunks)
    for stage in range(stages):
        draft.add_stage(stage, order(kind, stages, stage, micro_batches, chunks))
    return draft.finished()


class _Draft:
    """Tasks and edges as they are found."""

    def __init__(self, stages: int, chunks: int) -> None:
        self.stages, self.parts = stages, stages * chunks
        self.role: list[int] = []
        self.part: list[int] = []
        self.place: list[int] = []
        self.edges: list[tuple[int, int]] = []
        self.arrivals: dict[tuple[str, int, int], int] = {}
        """What brings a micro-batch to a part, by (pass, part, micro-batch)."""
        self.waiting: list[tuple[tuple[str, int, int], int]] = []
        self.reductions: list[int] = []
        self.updates: list[int] = []

    def add_stage(self, stage: int, slots: tuple[Slot, ...]) -> None:
        """The tasks of one stage, each behind the one before."""
        last = -1
        for slot in slots:
            last = self._add_slot(stage, slot, last)
        last = self._add(PipelineTask.REDUCE, stage, stage, last)
        self.reductions.append(last)
        self.updates.append(self._add(PipelineTask.UPDATE, stage, stage, last))

    def _add_slot(self, stage: int, slot: Slot, last: int) -> int:
        part = slot.chunk * self.stages + stage
        forward = slot.pass_ == "forward"
        own = self._add(
            PipelineTask.FORWARD if forward else PipelineTask.BACKWARD, part, stage, last
        )
        key = (slot.pass_, part, slot.micro_batch)
        self.waiting.append((key, own))
        if forward and part == self.parts - 1:
            self.arrivals["backward", part, slot.micro_batch] = own
            return own
        if not forward and part == 0:
            return own
        target = part + 1 if forward else part - 1
        link = self.stages + (2 * part if forward else 2 * target + 1)
        sent = self._add(PipelineTask.SEND, part, link, own)
        self.arrivals[slot.pass_, target, slot.micro_batch] = sent
        return sent

    def _add(self, role: PipelineTask, part: int, place: int, behind: int) -> int:
        number = len(self.role)
        self.role.append(role)
        self.part.append(part)
        self.place.append(place)
        if behind >= 0:
            self.edges.append((behind, number))
        return number

    def finished(self) -> Pipeline:
        """The graph; every duration is 1."""
        for key, task in self.waiting:
            source = self.arrivals.get(key)
            if source is not None:
                self.edges.append((source, task))
        for update, own in zip(self.updates, self.reductions, strict=True):
            self.edges += ((other, update) for other in self.reductions if other != own)
        n = len(self.role)
        resources = self.stages + 2 * self.parts
        places = np.full((n, 2), NOWHERE, np.int32)
        places[:, 0] = self.place
        role = np.array(self.role, np.int32)
        graph = TaskGraph(
            live=np.ones(n, np.bool_),
            duration=np.ones(n, np.int64),
            joint=np.zeros(n, np.bool_),
            places=places,
            hold=np.ones((n, 2), np.int64),
            set_start=np.arange(resources + 1, dtype=np.int32),
            set_resource=np.arange(resources, dtype=np.int32),
            resource_kind=(np.arange(resources) >= self.stages).astype(np.int32),
            **_adjacency(n, np.array(self.edges, np.int64).reshape(-1, 2)),
        )
        return Pipeline(graph, role, np.array(self.part, np.int32))


def _adjacency(n: int, edges: Ints) -> dict[str, np.ndarray]:
    """Successors and predecessors of each task as flat lists."""
    by_source = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    by_target = np.lexsort((by_source[:, 0], by_source[:, 1]))
    return {
        "succ_start": np.searchsorted(by_source[:, 0], np.arange(n + 1)).astype(np.int32),
        "succ": by_source[:, 1].astype(np.int32),
        "edge_live": np.ones(len(edges), np.bool_),
        "pred_start": np.searchsorted(by_source[by_target, 1], np.arange(n + 1)).astype(np.int32),
        "pred": by_source[by_target, 0].astype(np.int32),
        "pred_edge": by_target.astype(np.int32),
    }
