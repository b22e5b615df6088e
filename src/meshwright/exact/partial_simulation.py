"""Partial backward simulation: what decided tasks already wait for. Enters: a problem whose last
units have layouts. Leaves: how long tasks wait for resources, and devices for tasks.

If every forward task comes before the last unit's and every other task after it, the backward pass
starts with all resources free: a step takes as long as the forward and the backward pass, each by
itself. As tasks take resources in the order in which they are ready, the timeline is certain up to
when a task that is not decided could be ready. With w(t) the weight of task t in a sum of chains,
and v that of all devices' work after the last unit's forward task (`lagrangian`),
    sum + sum of w(t) (start(t) - ready(t)) over certain tasks
        + v x mean over devices of how long they have been idle        `waited`
is no more than the makespan of any completion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.simulate.collective_table import COMPUTE
from meshwright.simulate.full import take
from meshwright.simulate.problem import StepModel
from meshwright.simulate.task_template import NONE
from meshwright.simulate.tasks import NOWHERE, Flags, Indices, Ints, TaskGraph
from meshwright.solvers.mini_buckets import Costs


class SyncPoint(NamedTuple):
    """Arrays for the backward pass, and room to simulate it."""

    task: Indices
    """The tasks of the backward pass, in the order of their numbers; none without a waist."""
    key: Indices
    """[tasks] the first unit on whose layout a task depends."""
    low: Indices
    """[tasks] the lowest key of what may follow it."""
    missing: Indices
    ready: Ints
    free: Ints
    busy: Ints
    """[resources]"""
    queue: Indices


class Waits(NamedTuple):
    """How much waiting counts in several sums."""

    weight: Costs
    """[sums, tasks]"""
    idle: Costs
    """[sums]"""


def backward_tasks(problem: StepModel, after: Flags) -> Flags:
    """[tasks] whether it belongs to the backward pass; none does if there is no waist.

    `after` says which tasks come after which whatever the layouts.
    """
    labels, options, n = problem.labels, problem.options, len(problem.tasks.live)
    kind = np.array(labels.kind)
    waist = int(problem.template.forward[-1, 0])
    forward, backward = kind == "forward", np.isin(kind, ("backward", "update"))
    live = problem.tasks.live
    narrow = (
        options.zero == 0
        and not options.recompute
        and options.micro_batches == 1
        and all(after[t, waist] for t in np.flatnonzero(forward) if t != waist)
        and all(after[waist, t] for t in np.flatnonzero(backward & live))
    )
    return (backward | (kind == "return")) & narrow if narrow else np.zeros(n, np.bool_)


def waist(problem: StepModel, backward: Flags) -> SyncPoint:
    """The arrays of a problem."""
    labels, template, tasks = problem.labels, problem.template, problem.tasks
    n, resources = len(tasks.live), len(tasks.resource_kind)
    first = [
        min(bundle.maker, *(consumer.unit for consumer in bundle.consumers))
        if bundle.consumers
        else bundle.maker
        for bundle in problem.bundles
    ]
    unit = ("forward", "backward")
    key = np.array(
        [
            subject if kind in unit else first[subject]
            for kind, subject in zip(labels.kind, labels.subject, strict=True)
        ],
        np.int32,
    )
    low = np.full(n, len(template.flows), np.int32)
    for t in range(n):
        behind = tasks.succ[tasks.succ_start[t] : tasks.succ_start[t + 1]]
        low[t] = key[behind].min(initial=low[t])
    return SyncPoint(
        task=np.flatnonzero(backward).astype(np.int32),
        key=key,
        low=low,
        missing=np.full(n, NONE, np.int32),
        ready=np.zeros(n, np.int64),
        free=np.zeros(resources, np.int64),
        busy=np.zeros(resources, np.int64),
        queue=np.zeros(n, np.int32),
    )


@compiled
def _begin(tasks: TaskGraph, sync_point: SyncPoint, depth: int) -> int:
    """Set up the simulation of what is decided; how many tasks are ready."""
    task, key, missing, ready, queue = (
        sync_point.task,
        sync_point.key,
        sync_point.missing,
        sync_point.ready,
        sync_point.queue,
    )
    for r in range(len(sync_point.free)):
        sync_point.free[r] = sync_point.busy[r] = 0
    for i in range(len(task)):
        missing[task[i]], ready[task[i]] = 0, 0
    for i in range(len(task)):
        t = task[i]
        if key[t] >= depth and tasks.live[t]:
            for edge in range(tasks.succ_start[t], tasks.succ_start[t + 1]):
                if tasks.edge_live[edge] and key[tasks.succ[edge]] >= depth:
                    missing[tasks.succ[edge]] += 1
    size = 0
    for i in range(len(task)):
        if key[task[i]] >= depth and tasks.live[task[i]] and missing[task[i]] == 0:
            queue[size] = task[i]
            size += 1
    return size


@compiled
def _occupy(tasks: TaskGraph, sync_point: SyncPoint, t: int) -> None:
    """Count what a compute task holds devices for; what talking takes of them is idle time."""
    place, hold = tasks.places[t, 0], tasks.hold[t, COMPUTE]
    if place != NOWHERE and hold > 0 and not tasks.joint[t]:
        for at in range(tasks.set_start[place], tasks.set_start[place + 1]):
            r = tasks.set_resource[at]
            if tasks.resource_kind[r] == COMPUTE:
                sync_point.busy[r] += hold


@compiled
def _next(sync_point: SyncPoint, size: int) -> int:
    """The place in the queue of the task that takes its resources next."""
    queue, ready, first = sync_point.queue, sync_point.ready, 0
    for i in range(1, size):
        a, b = ready[queue[i]], ready[queue[first]]
        if a < b or (a == b and queue[i] < queue[first]):
            first = i
    return first


@compiled
def waited(tasks: TaskGraph, sync_point: SyncPoint, depth: int, sums: Waits, costs: Costs) -> None:
    """What to add to each sum if the units from `depth` on are decided; see the head."""
    weight = sums.weight
    for s in range(len(costs)):
        costs[s] = 0.0
    if len(sync_point.task) == 0:
        return
    queue, ready, missing, key, low = (
        sync_point.queue,
        sync_point.ready,
        sync_point.missing,
        sync_point.key,
        sync_point.low,
    )
    size, certain = _begin(tasks, sync_point, depth), np.int64(1) << 62
    while size > 0:
        i = _next(sync_point, size)
        t = queue[i]
        if ready[t] >= certain:
            break
        size -= 1
        queue[i] = queue[size]
        start = take(tasks, t, ready[t], sync_point.free)
        end = start + tasks.duration[t]
        for s in range(len(costs)):
            costs[s] += weight[s, t] * (start - ready[t])
        _occupy(tasks, sync_point, t)
        if low[t] < depth:
            certain = min(certain, end)
        for edge in range(tasks.succ_start[t], tasks.succ_start[t + 1]):
            after = tasks.succ[edge]
            if tasks.edge_live[edge] and key[after] >= depth:
                ready[after] = max(ready[after], end)
                missing[after] -= 1
                if missing[after] == 0:
                    queue[size] = after
                    size += 1
    if certain == np.int64(1) << 62:
        return
    spare, devices = 0.0, 0
    for r in range(len(sync_point.free)):
        if tasks.resource_kind[r] == COMPUTE:
            spare += max(certain, sync_point.free[r]) - sync_point.busy[r]
            devices += 1
    for s in range(len(costs)):
        costs[s] += sums.idle[s] * spare / devices
