"""The exact search: a global optimum by branch and bound, with its proof. Enters: a small problem.
Leaves: its global optimum, and whether that is proved.

Branch and bound. A part of the space has one layout left for some units and all for the others. The
part with the lowest bound is taken first: weights are sought under which no plan in it is faster
than the best so far (`lagrangian`); else a tree of its partial plans is grown (`branch_and_bound`),
in which every whole plan is simulated that no bound rules out; else, if that gets too large, the
part is divided by the layouts of its heaviest unit. Whatever was given up is not faster than the
best. So when no part is left, the best is the optimum over all layouts of all units. A plan that
does not fit never becomes the best; as bounds hold for all plans, they hold for those that fit.

Coordinates along a factor can be renamed in a whole plan without changing its makespan, unless the
machine tells its positions apart. So only plans are tried in which each coordinate first appears
after all lower ones.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from meshwright.exact.branch_and_bound import (
    BEST,
    DEPTH,
    FASTER,
    MAKESPAN,
    NODES,
    ROUNDING,
    SIMULATED,
    Ground,
    empty_search_tree,
    flat,
    grown,
    is_canonical_coordinate_order,
    opened,
    padded,
)
from meshwright.exact.lagrangian import Relaxation, TaskWeights
from meshwright.exact.partial_simulation import Waits, waist
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL, at
from meshwright.simulate import full
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import group_outside_space, space
from meshwright.simulate.move import move_buffers
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Flags, Indices

ROUNDS = 200
"""Of the game that finds weights for the whole space."""

AGAIN = 20
"""Of the game that goes on from these weights for a part of it."""

TURN = 20_000
"""Partial plans after which a part is divided."""

NEVER = 1 << 62
"""A makespan that any plan beats."""

Stopped = Literal["complete", "budget", "interrupted"]


class Optimum(NamedTuple):
    """The best plan that fits, and what is known of all others."""

    roles: Codes | None
    """None if no plan that fits was found to be faster than what was to be beaten."""
    nanoseconds: int
    """Its makespan, or what was to be beaten: NEVER if that was any plan."""
    bound: int
    """No plan is faster than this and fits; `nanoseconds` or more if the optimum is proved."""
    root: int
    """What was known before any layout was chosen."""
    parts: int
    """Parts of the space that were looked into."""
    nodes: int
    """Partial plans in their trees."""
    simulated: int
    """Whole plans that were simulated."""
    seconds: float
    stopped: Stopped

    @property
    def proved(self) -> bool:
        """Whether no plan that fits is faster."""
        return self.bound >= self.nanoseconds


class _Part(NamedTuple):
    """A part of the space."""

    bound: int
    number: int
    relaxed: Relaxation
    weights: TaskWeights
    named: Indices
    """[factors] how many coordinates have appeared in the units with one layout left."""


def exhaustive(
    problem: StepModel,
    incumbent: Codes | None = None,
    *,
    fits: Callable[[Codes], bool] | None = None,
    best: int = NEVER,
    seconds: float = math.inf,
    progress: Callable[[int, int, int], None] = lambda parts, bound, best: None,
) -> Optimum:
    """The fastest plan that fits, with `best` nanoseconds and `incumbent` as the first to beat.

    `fits` is asked of plans that are faster than the best so far, and leaves the problem laid out
    with the roles it was given (`memory_timeline.within`); without it every plan fits. `progress`
    is told how many parts were looked into, the lowest bound and the lowest makespan; a
    KeyboardInterrupt ends the search with the best so far.
    """
    search = _Search(problem, incumbent, fits or (lambda roles: True), best)
    stopped: Stopped = "complete"
    try:
        while search.parts and search.parts[0].bound < search.best:
            if search.seconds > seconds:
                stopped = "budget"
                break
            search.look()
            progress(search.looked, search.bound, search.best)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Optimum(
        roles=search.roles,
        nanoseconds=search.best,
        bound=search.bound,
        root=search.root,
        parts=search.looked,
        nodes=search.nodes,
        simulated=search.simulated,
        seconds=search.seconds,
        stopped=stopped,
    )


class _Search:
    """Parts of the space that are left, and the best plan so far."""

    def __init__(
        self,
        problem: StepModel,
        incumbent: Codes | None,
        fits: Callable[[Codes], bool],
        best: int,
    ) -> None:
        self._began = time.monotonic()
        self.problem, self._fits = problem, fits
        self.roles: Codes | None = None
        self.best = best
        if incumbent is not None:
            unit = group_outside_space(problem, space(problem), incumbent)
            assert unit is None, f"the layout to beat of {unit} is not in the space"
            problem.lay(incumbent)
            self._judge(incumbent.copy(), full.simulate(problem.tasks).makespan)
        whole = Relaxation(problem)
        start = whole.worst((0,) * len(whole.sizes))
        weights, buckets = whole.weighed(start, ROUNDS, self.best)
        self._renamed = _renamed(problem)
        self._waist = waist(problem, whole.backward)
        self._work = full.scratch(problem.tasks)
        self._timeline = full.timeline_of(problem.tasks)
        named = np.zeros(len(problem.factors), np.int32)
        self.root = _whole(buckets.least)
        self.parts = [_Part(self.root, 0, whole, weights, named)]
        self.looked = self.nodes = self.simulated = 0
        self._made = 1
        self._under_way = NEVER

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._began

    @property
    def bound(self) -> int:
        """No plan is faster than this."""
        waiting = self.parts[0].bound if self.parts else NEVER
        return min(self.best, waiting, self._under_way)

    def look(self) -> None:
        """Give up, search through or divide the part with the lowest bound."""
        part = heapq.heappop(self.parts)
        self._under_way = part.bound
        self.looked += 1
        weights, buckets = part.relaxed.weighed(part.weights, AGAIN, self.best - 1 + ROUNDING)
        bound = max(part.bound, _whole(buckets.least))
        part = part._replace(bound=bound, weights=weights)
        if bound < self.best and not self._searched(part):
            self._divide(part)
        self._under_way = NEVER

    def _searched(self, part: _Part) -> bool:
        """Grow the tree of a part; whether all of it was searched."""
        ground = self._ground(part)
        tree = empty_search_tree(
            part.relaxed.sizes, len(self.problem.factors), len(ground.waits.idle)
        )
        tree.named[0] = part.named
        tree.number[BEST] = self.best
        opened(tree, ground)
        while tree.number[DEPTH] >= 0 and tree.number[NODES] < TURN:
            left = TURN - int(tree.number[NODES])
            status = grown(
                move_buffers(self.problem), self._work, self._timeline, tree, ground, left
            )
            if status == FASTER:
                roles = part.relaxed.roles(tuple(map(int, tree.chosen[::-1])))
                self._judge(roles, int(tree.number[MAKESPAN]))
                tree.number[BEST] = self.best
            elif status != FOUND:
                self.problem.supply(status)
        self.nodes += int(tree.number[NODES])
        self.simulated += int(tree.number[SIMULATED])
        return bool(tree.number[DEPTH] < 0)

    def _judge(self, roles: Codes, makespan: int) -> None:
        """Let a plan be the best if it is faster and fits."""
        if makespan < self.best and self._fits(roles):
            self.best, self.roles = makespan, roles

    def _divide(self, part: _Part) -> None:
        unit = part.relaxed.heaviest()
        assert unit is not None, "a part with one plan is searched at once"
        for layout, roles in enumerate(part.relaxed.choices[unit]):
            if is_canonical_coordinate_order(roles, part.named, self._renamed):
                relaxed = part.relaxed.restricted(unit, layout)
                bound = max(part.bound, _whole(relaxed.least(part.weights).least))
                if bound < self.best:
                    named = np.maximum(part.named, PARTIAL - roles).astype(np.int32)
                    child = _Part(bound, self._made, relaxed, part.weights, named)
                    heapq.heappush(self.parts, child)
                    self._made += 1

    def _ground(self, part: _Part) -> Ground:
        """What the tree of a part grows on."""
        problem, relaxed = self.problem, part.relaxed
        sizes, buckets = relaxed.sizes, relaxed.least(part.weights)
        layouts = np.zeros((len(sizes), max(sizes), len(problem.factors)), np.int8)
        for row, roles in zip(layouts, reversed(relaxed.choices), strict=True):
            row[: len(roles)] = roles
        decided: list[list[int]] = [[] for _ in sizes]
        for b, bundle in enumerate(problem.bundles):
            first = min([bundle.maker, *(consumer.unit for consumer in bundle.consumers)])
            decided[-1 - first].append(b)
        return Ground(
            layouts=layouts,
            counts=np.array(sizes[::-1], np.int32),
            renamed=self._renamed,
            bundles=padded(decided),
            sums=flat([buckets], sizes),
            waits=Waits(relaxed.waiting(part.weights)[None], part.weights.idle),
            waist=self._waist,
        )


def _whole(nanoseconds: float) -> int:
    """The least whole number of nanoseconds that a sum of floats allows."""
    return math.ceil(nanoseconds - ROUNDING)


def _renamed(problem: StepModel) -> Flags:
    """[factors] whether the coordinates along a factor can be renamed."""
    cluster, coordinates = problem.cluster, (space(problem).role <= at(0)).sum(axis=2)
    innermost = len(cluster.levels) - 1
    return np.array(
        [
            not cluster.levels[factor.level].blocks
            and not (cluster.wired and factor.level == innermost)
            # Some that may sit at one coordinate and not at another tell coordinates apart.
            and {0, factor.size}.issuperset(coordinates[:, f].tolist())
            for f, factor in enumerate(problem.factors)
        ],
        np.bool_,
    )
