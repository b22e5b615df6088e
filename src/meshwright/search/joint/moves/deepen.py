"""Degree grid, hill climbing and iterated local search of the deepening phase. Enters: trials so
far. Leaves: more of them.

degrees    the best of all configurations by degrees of DP, TP, CP, PP and EP, with micro-batches,
           ZeRO, recomputation and virtual stages (`baselines.degrees.grid`), on the graph as it
           is; the best of them on graphs that compute the same
climbed    hill climbing from a plan, pipelined or not: all copies of a unit get another role for
           one factor, in an order drawn from the seed, simulated whole
kicked     the best plan with some such roles drawn at random, to climb from elsewhere (iterated
           local search, Lourenço, Martin & Stützle 2003)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.config import ParallelConfig
from meshwright.baselines.degrees.grid import ConfigChoices, Grid, search_grid
from meshwright.search.joint.coarse.global_config import savings, zero_group_sizes
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.request.constraints import MICRO_BATCHES, RECOMPUTE, STAGES, option
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.search.joint.trials.clock import Clock
from meshwright.search.joint.trials.evaluate import Evaluator
from meshwright.search.joint.trials.optimality import Optimality
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, is_at

GOAL = 0.05
"""A plan that is no farther from its bound is good enough: nothing is spent on a better one."""

WHOLE_SIMULATION = 5
"""Proposals of a walk, for each unit, that a whole simulation counts as."""

BEST = 3
"""Configurations that are laid out on other graphs."""

KICK = 3
"""Roles that are drawn at once."""


class Allowance:
    """Whether nothing more is to be tried: the best plan is near its bound, or the time is used up,
    or as many simulations as a number of proposals allows.
    """

    def __init__(
        self, trials: Evaluator, optimality: Optimality, clock: Clock, proposals: int | None
    ) -> None:
        self._each = math.inf
        if proposals is not None:
            self._each = proposals // (WHOLE_SIMULATION * len(trials.contexts[0].units))
        self._trials, self._optimality, self._clock = trials, optimality, clock
        self._judged: CandidateEntry | None = None
        self._near = False
        self.renew()

    def renew(self, *, limited: bool = True) -> None:
        """Allow as many simulations from now on, or any number."""
        self._most = self._trials.kept.simulated + (self._each if limited else math.inf)

    def __call__(self) -> bool:
        """Asked before each trial; the bound, only of a plan that is new."""
        kept = self._trials.kept
        if self._clock.enough() or kept.simulated >= self._most:
            return True
        if kept.best is not self._judged:
            self._judged = kept.best
            self._near = self._optimality.reached(kept.best, self._trials.contexts, GOAL)
        return self._near


def by_degrees(
    question: PlanRequest,
    trials: Evaluator,
    context: GraphContext,
    enough: Callable[[], bool],
    screening: Callable[[], bool],
) -> None:
    """Simulate configurations of a graph, and the best of them on the others; nothing if it has no
    layers with attention.
    """
    try:
        grid = Grid(context.graph, question.cluster, choices(question))
    except InputError:
        return
    search_grid(grid, partial(trials.configured, context), enough, screening)
    for config in trials.best_configured(context, BEST):
        for other in trials.contexts:
            if not enough():
                trials.configured(other, config)


def choices(question: PlanRequest) -> ConfigChoices:
    """What configurations may say."""
    constraints, training = question.constraints, question.training
    allowed, recompute = savings(constraints, 2), option(constraints, RECOMPUTE)
    stages = {saving.zero for saving in allowed}
    return ConfigChoices(
        base=ParallelConfig(optimizer=training.optimizer, mixed=training.mixed),
        zero=tuple(sorted(stages)),
        within=zero_group_sizes(question, max(stages)),
        sync_each=tuple(sorted({saving.sync_each for saving in allowed})),
        recompute=(False, True) if recompute is None else (bool(recompute),),
        micro_batches=option(constraints, MICRO_BATCHES),
        stages=option(constraints, STAGES),
    )


def climbed(
    trials: Evaluator, start: CandidateEntry, drawn: random.Random, enough: Callable[[], bool]
) -> None:
    """Climb from a plan until no role of like units makes it better."""
    now: CandidateEntry = start
    before: CandidateEntry | None = None
    while now is not before:
        before = now
        moves = list(_moves(now))
        drawn.shuffle(moves)
        for node, factor, role in moves:
            if enough():
                return
            roles = _moved(now, node, factor, role)
            tried = None
            if roles is not None:
                tried = trials.relaid(now, now.candidate.plan.options, roles)
            if tried is not None and trials.kept.score(tried) < trials.kept.score(now):
                now = tried


def perturb_plan(
    trials: Evaluator, best: CandidateEntry, drawn: random.Random
) -> CandidateEntry | None:
    """A plan with KICK roles of like units drawn at random; None if it is known or cannot run."""
    now, moves = best, list(_moves(best))
    for node, factor, role in drawn.sample(moves, min(KICK, len(moves))):
        roles = _moved(now, node, factor, role)
        if roles is not None:
            now = now._replace(roles=roles)
    return trials.relaid(best, best.candidate.plan.options, now.roles)


def _moves(entry: CandidateEntry) -> Iterator[tuple[int, int, int]]:
    """Nodes, factors along which nothing sits at one coordinate, and roles."""
    context = entry.context
    for factor in range(len(context.factors)):
        if any(is_at(role) for role in entry.roles[:, factor].tolist()):
            continue
        for node, unit in _first(context).items():
            size, group = context.factors[factor].size, context.units[unit]
            cut = [s for s in range(len(group.splits)) if group.cuttable(s, size)]
            yield from ((node, factor, role) for role in (WHOLE, *cut))


def _first(context: GraphContext) -> dict[int, int]:
    """Of each node its first unit."""
    return {node: unit for unit, node in reversed(list(enumerate(context.node)))}


def _moved(entry: CandidateEntry, node: int, factor: int, role: int) -> Codes | None:
    """All units of a node with another role; None if they have it."""
    units = [unit for unit, unit_node in enumerate(entry.context.node) if unit_node == node]
    if (entry.roles[units, factor] == role).all():
        return None
    roles = entry.roles.copy()
    roles[units, factor] = role
    return roles
