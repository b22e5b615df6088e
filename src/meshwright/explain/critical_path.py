"""The critical path of a step. Enters: a task graph and its timeline. Leaves: the tasks that the
step waited for, one after the other, from its beginning to its end.

Whatever a task waited for last released it (see `tasks`): where start(t) = ready(t) the task
before it that ended then, elsewhere the task that held one of its resources until then. Walking
back from the last end, pieces meet without a gap and without an overlap:
    piece 0 begins at 0,  piece i + 1 begins where piece i ends,  the last ends at the makespan.
A task counts while the next waited for it: from its start to its end, or as long as it held the
resource. So nothing on the path is waiting: each nanosecond belongs to a task. Where several
tasks release another at once, the first that is found counts. What tasks stand for is not known.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.explain.utilisation import LinkUse, uses
from meshwright.simulate.tasks import TaskGraph, Timeline


class PathPiece(NamedTuple):
    """A task on the path, in nanoseconds."""

    task: int
    start: int
    end: int
    held: bool
    """Whether the next waited for a resource that this one held, and not for its end."""


def critical_path(graph: TaskGraph, timeline: Timeline) -> tuple[PathPiece, ...]:
    """What the step waited for, from 0 to the makespan; nothing if there are no tasks."""
    if not len(timeline.order):
        return ()
    held = _held_before(graph, timeline)
    last = int(timeline.end.argmax())
    pieces = [PathPiece(last, int(timeline.start[last]), timeline.makespan, False)]
    while pieces[-1].start > 0:
        task, start = pieces[-1].task, pieces[-1].start
        if start == timeline.ready[task]:
            before = _releasing(graph, timeline, task)
            pieces.append(PathPiece(before, int(timeline.start[before]), start, False))
        else:
            use = next(use for at, use in held[task] if at == start)
            pieces.append(PathPiece(use.task, use.start, start, True))
    return tuple(reversed(pieces))


def _releasing(graph: TaskGraph, timeline: Timeline, task: int) -> int:
    """The task whose end made another ready."""
    for at in range(graph.pred_start[task], graph.pred_start[task + 1]):
        before = int(graph.pred[at])
        if graph.edge_live[graph.pred_edge[at]] and timeline.end[before] == timeline.ready[task]:
            return before
    raise AssertionError(f"nothing made task {task} ready")


def _held_before(graph: TaskGraph, timeline: Timeline) -> dict[int, list[tuple[int, LinkUse]]]:
    """For each task that took a resource the moment it was free: when, and who had held it."""
    last: dict[int, LinkUse] = {}
    holders: dict[int, list[tuple[int, LinkUse]]] = {}
    for use in uses(graph, timeline):
        before = last.get(use.resource)
        if before is not None and before.start + before.hold == use.start:
            holders.setdefault(use.task, []).append((use.start, before))
        last[use.resource] = use
    return holders
