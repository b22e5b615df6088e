"""The Lagrangian bound of a partial plan (Fisher 1981). Enters: a small problem. Leaves: functions
of the layouts of a few units each, whose sum is never more than the makespan.

Let d(t) be the duration of task t, 0 if it is not live, and s(t) the share of all devices that a
compute task works on. Whatever the layouts,
    makespan >= sum of d(t) over a chain of tasks
    makespan >= sum of d(t) over a chain + sum of s(u) d(u) over compute tasks u that always come
                after its last task, or that always come before its first       `Relaxation.worst`
A transfer counts in a chain only if the reader, or the sender, on that chain waits for it. A
weighted mean of such sums is no more than the makespan either, and it is a sum of functions of a
unit's layout or of the layouts of a bundle's units (`Relaxation.least`), which `mini_buckets`
minimises. Where the step has a waist (`partial_simulation`) the same holds for both passes apart,
and for their sum.

Variables are the units from the last to the first: the backward pass is what is decided first.

The weights are found by a game: for given ones take the layouts with the least sum, find the sum
that is largest for these, and mix it in (fictitious play); the best least sum is kept (`weighed`).
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np

from meshwright.base.compiled import compiled
from meshwright.exact.duration_tables import (
    OpGroupDurations,
    choices,
    edge_durations,
    op_group_durations,
)
from meshwright.exact.partial_simulation import backward_tasks
from meshwright.sharding.reshard import Codes
from meshwright.simulate.problem import StepModel
from meshwright.simulate.task_template import NONE
from meshwright.simulate.tasks import Flags, Indices, Ints, TaskGraph
from meshwright.solvers.mini_buckets import Costs, MiniBuckets, choice, eliminate

_COMPUTE = ("forward", "backward", "update")


class TaskWeights(NamedTuple):
    """How much the duration of each task counts."""

    chain: Costs
    """[tasks] of compute tasks"""
    share: Costs
    """[tasks] of compute tasks, times the share of devices"""
    forward: Costs
    """[consumers] of what carries a bundle, if the consumer waits for it"""
    backward: Costs
    """[consumers] of what returns its gradient, if it waits for the consumer"""
    idle: Costs
    """[1] of the time for which devices have nothing to do in the backward pass"""

    def mixed(self, other: TaskWeights, part: float) -> TaskWeights:
        """A weighted mean."""
        return TaskWeights(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class Relaxation:
    """The functions of one problem."""

    def __init__(self, problem: StepModel) -> None:
        self.problem = problem
        self.choices = choices(problem)
        self.sizes = tuple(map(len, self.choices))
        problem.roles[:] = [layouts[0] for layouts in self.choices]
        self._units = [
            op_group_durations(problem, u, layouts) for u, layouts in enumerate(self.choices)
        ]
        self._bundles = [
            edge_durations(problem, b, self.choices) for b in range(len(problem.bundles))
        ]
        self._compute: Flags = np.array([kind in _COMPUTE for kind in problem.labels.kind])
        self._source = np.repeat(
            np.arange(len(problem.tasks.live)), np.diff(problem.tasks.succ_start)
        )
        self._after = self._always_after()
        self.backward: Flags = backward_tasks(problem, self._after)

    def restricted(self, unit: int, layout: int) -> Relaxation:
        """The same with one layout left for a unit."""
        restricted, keep = copy(self), slice(layout, layout + 1)
        restricted.choices = tuple(c[keep] if u == unit else c for u, c in enumerate(self.choices))
        restricted.sizes = tuple(map(len, restricted.choices))
        restricted._units = [
            OpGroupDurations(*(column[keep] for column in times)) if u == unit else times
            for u, times in enumerate(self._units)
        ]
        restricted._bundles = [
            tables if tables is None else tables.restricted(unit, layout)
            for tables in self._bundles
        ]
        return restricted

    def heaviest(self) -> int | None:
        """Of the units with several layouts left the one that can take longest."""
        open_ = [u for u, size in enumerate(self.sizes) if size > 1]
        times = self._units
        return max(
            open_, key=lambda u: float((times[u].forward + times[u].backward).max()), default=None
        )

    def least(self, weights: TaskWeights) -> MiniBuckets:
        """The functions whose sum is never more than the makespan, minimised."""
        last = len(self.sizes) - 1
        turned = (
            (tuple(last - unit for unit in reversed(scope)), cost.transpose())
            for scope, cost in self._functions(weights)
        )
        return eliminate(self.sizes[::-1], turned)

    def _functions(self, weights: TaskWeights) -> list[tuple[tuple[int, ...], Costs]]:
        """The functions by units, in nanoseconds."""
        template = self.problem.template
        functions: list[tuple[tuple[int, ...], Costs]] = []
        for unit, times in enumerate(self._units):
            cost = np.zeros(self.sizes[unit])
            for tasks, durations in (
                (template.forward, times.forward),
                (template.backward, times.backward),
            ):
                chain, share = weights.chain[tasks[unit]], weights.share[tasks[unit]]
                cost += durations * (chain.sum() + share.sum() * times.share)
            functions.append(((unit,), cost))
        for b, tables in enumerate(self._bundles):
            if tables is None:
                continue
            consumers = slice(template.leg_start[b], template.leg_start[b + 1])
            cost = (
                tables.forward @ weights.forward[consumers]
                + tables.backward @ weights.backward[consumers]
            )
            if template.update[b] != NONE:
                task, maker = template.update[b], tables.scope.index(int(template.maker[b]))
                shape = [-1 if i == maker else 1 for i in range(len(tables.scope))]
                share = self._units[tables.scope[maker]].share.reshape(shape)
                cost = cost + tables.update * (weights.chain[task] + weights.share[task] * share)
            functions.append((tables.scope, cost))
        return functions

    def roles(self, chosen: tuple[int, ...]) -> Codes:
        """The layouts with these numbers."""
        return np.array(
            [layouts[i] for layouts, i in zip(self.choices, chosen, strict=True)], np.int8
        )

    def worst(self, chosen: tuple[int, ...]) -> TaskWeights:
        """The weights of the largest lower bound of some layouts."""
        problem, tasks = self.problem, self.problem.tasks
        problem.lay(self.roles(chosen))
        n, consumers = len(tasks.live), len(problem.template.leg_unit)
        weights = TaskWeights(*(np.zeros(size) for size in (n, n, consumers, consumers, 1)))
        load = tasks.live * self._compute * tasks.duration * self._shares(chosen)
        ends, starts = (np.where(tasks.live, tasks.duration, 0) for _ in range(2))
        before, behind = (np.full(n, NONE, np.int64) for _ in range(2))
        _chains(tasks, self._source, self.backward, ends, before, starts, behind)
        for phase in (self.backward, ~self.backward):
            if not phase.any():
                continue
            inside = self._after & phase & self._compute
            later = (ends + inside @ load) * phase
            earlier = (starts + load @ (self._after.T & phase & self._compute).T) * phase
            most = max(later.max(), earlier.max())
            if load[phase].sum() >= most:
                weights.share[phase & self._compute] = 1.0
                weights.idle[0] = phase is self.backward
            elif later.max() == most:
                weights.share[inside[later.argmax()]] = 1.0
                self._count(weights, int(later.argmax()), before, self._source)
            else:
                first = int(earlier.argmax())
                weights.share[self._after[:, first] & phase & self._compute] = 1.0
                self._count(weights, first, behind, tasks.succ)
        return weights

    def weighed(
        self, weights: TaskWeights, rounds: int, enough: float
    ) -> tuple[TaskWeights, MiniBuckets]:
        """Weights whose least sum is high, from given ones on, and their functions.

        The game ends when the least sum is enough.
        """
        best, buckets = weights, self.least(weights)
        kept = buckets
        for number in range(rounds):
            if kept.least > enough:
                break
            weights = weights.mixed(self.worst(choice(buckets)[::-1]), 2 / (number + 4))
            buckets = self.least(weights)
            if buckets.least > kept.least:
                best, kept = weights, buckets
        return best, kept

    def waiting(self, weights: TaskWeights) -> Costs:
        """[tasks] how much it counts when a task of the backward pass waits for resources."""
        template, costs = self.problem.template, weights.chain * self.backward
        for b in range(len(template.maker)):
            # With several consumers one may have to be waited for and another not.
            if template.leg_start[b + 1] - template.leg_start[b] == 1 and self.backward.any():
                costs[template.carry_back[b, 0]] = weights.backward[template.leg_start[b]]
        return costs

    def _count(self, weights: TaskWeights, task: int, link: Ints, towards: Indices | Ints) -> None:
        """Count the tasks and consumers of a chain that ends, or starts, with a task."""
        template = self.problem.template
        weights.chain[task] += self._compute[task]
        while (edge := int(link[task])) != NONE:
            task = int(towards[edge])
            weights.chain[task] += self._compute[task]
            weights.forward[(template.leg_edge == edge).any(axis=1)] += 1.0
            weights.backward[(template.leg_back_edge == edge).any(axis=1)] += 1.0

    def _shares(self, chosen: tuple[int, ...]) -> Costs:
        """For each task the share of devices that its unit, or its bundle's maker, works on."""
        shares = np.zeros(len(self.problem.tasks.live))
        labels, maker = self.problem.labels, self.problem.template.maker
        for task, (kind, subject) in enumerate(zip(labels.kind, labels.subject, strict=True)):
            unit = subject if kind in ("forward", "backward") else int(maker[subject])
            shares[task] = self._units[unit].share[chosen[unit]]
        return shares

    def _always_after(self) -> Flags:
        """[tasks, tasks] which come after which whatever the layouts."""
        template, tasks = self.problem.template, self.problem.tasks
        always = tasks.edge_live.copy()
        for edges in (
            template.carried_edge, template.returned_edge, template.leg_edge,
            template.leg_back_edge, template.leg_again_edge, template.regather_edge,
        ):  # fmt: skip
            always[edges[edges != NONE]] = False
        after = np.zeros((len(tasks.live), len(tasks.live)), np.bool_)
        for edge in reversed(np.flatnonzero(always)):
            before, behind = self._source[edge], tasks.succ[edge]
            after[before, behind] = True
            after[before] |= after[behind]
        return after


@compiled
def _chains(
    tasks: TaskGraph,
    source: Ints,
    phase: Flags,
    ends: Ints,
    before: Ints,
    starts: Ints,
    behind: Ints,
) -> None:
    """For each task the longest chain in its phase that ends with it, and that starts with it.

    `ends` and `starts` enter as durations; `before` and `behind` get the edges of the chains.
    """
    # Edges are sorted by where they start, and lead to higher numbers.
    duration, succ, edge_live = tasks.duration, tasks.succ, tasks.edge_live
    for edge in range(len(succ)):
        a, b = source[edge], succ[edge]
        if edge_live[edge] and phase[a] == phase[b] and ends[a] + duration[b] > ends[b]:
            ends[b], before[b] = ends[a] + duration[b], edge
    for edge in range(len(succ) - 1, -1, -1):
        a, b = source[edge], succ[edge]
        if edge_live[edge] and phase[a] == phase[b] and starts[b] + duration[a] > starts[a]:
            starts[a], behind[a] = starts[b] + duration[a], edge
