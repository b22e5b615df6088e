"""The fastest of all plans. Enters: a small problem. Leaves: its global optimum, and whether that
is proved.

Units get their layouts one after the other, in order, depth first. A partial plan is given up when
no completion can be faster than the best plan so far (`relax`, several sums, each minimised by
`buckets`); a whole one is simulated. Whatever was given up is slower or as slow, so when nothing
is left the best is the optimum over all layouts of all units, up to makespan.

Coordinates along a factor can be renamed in a whole plan without changing its makespan, unless the
machine tells its positions apart. So only plans are tried in which each coordinate first appears
after all lower ones (`_named`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from meshwright.parallelize.reshard import Codes
from meshwright.search.change import board
from meshwright.search.relax import Relaxation
from meshwright.search.tree import (
    BEST,
    DEPTH,
    NODES,
    ROUNDING,
    SIMULATED,
    Ground,
    Tree,
    flat,
    grown,
    opened,
    padded,
    planted,
)
from meshwright.search.waist import Waits, waist
from meshwright.simulate import full
from meshwright.simulate.lay import FOUND
from meshwright.simulate.problem import Problem
from meshwright.simulate.tasks import Flags

ROUNDS = 200
"""Of the game that finds a sum."""

TURN = 100_000
"""Partial plans between two looks at the clock."""

NEVER = 1 << 62
"""A makespan that any plan beats."""

Stopped = Literal["complete", "budget", "interrupted"]


class Optimum(NamedTuple):
    """The best plan, and what is known of all others."""

    roles: Codes
    nanoseconds: int
    bound: int
    """No plan is faster than this; equal to `nanoseconds` if the optimum is proved."""
    nodes: int
    """Partial plans that were looked into."""
    simulated: int
    """Whole plans that were simulated."""
    root: int
    """What was known before any layout was chosen."""
    seconds: float
    stopped: Stopped

    @property
    def proved(self) -> bool:
        """Whether no plan is faster."""
        return self.bound >= self.nanoseconds


def exhaustive(
    problem: Problem,
    incumbent: Codes | None = None,
    *,
    seconds: float = math.inf,
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] = lambda nodes, best: None,
) -> Optimum:
    """The fastest plan, with the layouts of `incumbent` as the first one to beat.

    `progress` is told partial plans and the best makespan; a KeyboardInterrupt ends the search.
    """
    began = time.monotonic()
    relaxed = Relaxation(problem)
    start = _numbers(relaxed, incumbent) if incumbent is not None else (0,) * len(relaxed.sizes)
    ground, root = _ground(problem, relaxed, start, rounds)
    tree = planted(relaxed.sizes, len(problem.factors), len(ground.waits.idle))
    problem.lay(relaxed.roles(start))
    tree.best[:] = start[::-1]
    tree.number[BEST] = full.simulate(problem.tasks).makespan if incumbent is not None else NEVER
    opened(tree, ground)
    work, timeline = full.scratch(problem.tasks), full.timeline_of(problem.tasks)
    stopped: Stopped = "complete"
    try:
        while tree.number[DEPTH] >= 0:
            status = grown(board(problem), work, timeline, tree, ground, TURN)
            if status != FOUND:
                problem.supply(status)
                continue
            progress(int(tree.number[NODES]), int(tree.number[BEST]))
            if tree.number[DEPTH] >= 0 and time.monotonic() - began > seconds:
                stopped = "budget"
                break
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Optimum(
        roles=relaxed.roles(tuple(map(int, tree.best[::-1]))),
        nanoseconds=int(tree.number[BEST]),
        bound=_left(tree),
        nodes=int(tree.number[NODES]),
        simulated=int(tree.number[SIMULATED]),
        root=root,
        seconds=time.monotonic() - began,
        stopped=stopped,
    )


def _ground(
    problem: Problem, relaxed: Relaxation, start: tuple[int, ...], rounds: int
) -> tuple[Ground, int]:
    """What the tree grows on, and a lower bound before any layout is chosen."""
    alone = relaxed.worst(start)
    weighed = [relaxed.weighed(start, rounds), (alone, relaxed.least(alone))]
    layouts = np.zeros((len(start), max(relaxed.sizes), len(problem.factors)), np.int8)
    for row, own in zip(layouts, reversed(relaxed.choices), strict=True):
        row[: len(own)] = own
    decided: list[list[int]] = [[] for _ in start]
    for b, bundle in enumerate(problem.bundles):
        decided[-1 - min(bundle.maker, *(leg.unit for leg in bundle.legs))].append(b)
    ground = Ground(
        layouts=layouts,
        counts=np.array(relaxed.sizes[::-1], np.int32),
        renamed=_renamed(problem),
        bundles=padded(decided),
        sums=flat([buckets for _, buckets in weighed], relaxed.sizes),
        waits=Waits(
            np.array([relaxed.waiting(weights) for weights, _ in weighed]),
            np.array([weights.idle[0] for weights, _ in weighed]),
        ),
        waist=waist(problem, relaxed.backward),
    )
    return ground, math.ceil(max(buckets.least for _, buckets in weighed) - ROUNDING)


def _left(tree: Tree) -> int:
    """No plan is faster than this: the best, or the lowest bound of what was not tried."""
    best, opened = int(tree.number[BEST]), tree.worst[: tree.number[DEPTH] + 1]
    lowest = float(opened.min(initial=math.inf))
    return min(best, math.ceil(lowest - ROUNDING)) if math.isfinite(lowest) else best


def _numbers(relaxed: Relaxation, roles: Codes) -> tuple[int, ...]:
    """The numbers of layouts."""
    return tuple(
        int(np.flatnonzero((own == given).all(axis=1))[0])
        for own, given in zip(relaxed.choices, roles, strict=True)
    )


def _renamed(problem: Problem) -> Flags:
    """[factors] whether the coordinates along a factor can be renamed."""
    cluster = problem.cluster
    innermost = len(cluster.levels) - 1
    return np.array(
        [
            not cluster.levels[factor.level].blocks
            and not (cluster.wired and factor.level == innermost)
            for factor in problem.factors
        ],
        np.bool_,
    )
