"""Global configs: pipeline stages, micro-batches, ZeRO stage and recomputation of a whole plan.
Enters: a question. Leaves: `GlobalConfig`s.

A global config says which factors hold the stages of a pipeline, and the options: micro-batches,
recomputation, ZeRO and among whom it shards, buckets. Stages sit along factors of one level, so
that what passes between them crosses that level; along any in a row, across levels too, where the
user has fixed how many they are or pinned where. Micro-batches are as many as divide the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from meshwright.base.integers import divisors
from meshwright.base.once import once
from meshwright.baselines.degrees.grid import thinned
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SHARDS_GRADIENTS, Options
from meshwright.search.joint.request.constraints import (
    BUCKET,
    MICRO_BATCHES,
    RECOMPUTE,
    SHARD_WITHIN,
    STAGES,
    SYNC_EACH,
    ZERO,
    Constraints,
    option,
    sitting,
)
from meshwright.search.joint.request.contradictions import stage_runs
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import MeshFactor, factors, level_group_sizes
from meshwright.sharding.micro_batches import supports_micro_batches
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import at
from meshwright.sharding.units import units

MOST_STAGES = 64
MOST_TASKS = 1_500_000
"""Units times micro-batches, at most: a simulation has some tasks for each of them."""

NO_LEVEL = -1
"""Where no stages sit."""

SLOTS = (4, 8, 2, 1)
"""Micro-batches of a pipeline, as multiples of its stages, the likeliest first."""

BUCKETS = (0, 4 << 20, 25 << 20, 100 << 20)
"""Bytes of gradients that are summed up together."""


class GlobalConfig(NamedTuple):
    """Decisions for the whole graph."""

    stages: tuple[int, ...]
    """Factors along which stages sit; none if there is no pipeline."""
    options: Options

    def degree(self, mesh_factors: Sequence[MeshFactor]) -> int:
        """How many stages there are."""
        return _count(self.stages, mesh_factors)


class MemorySaving(NamedTuple):
    """A way to hold less: what it is about memory that options decide."""

    zero: int
    recompute: bool
    sync_each: bool = False

    def on(self, options: Options) -> Options:
        """Options with it."""
        return replace(
            options.with_zero(self.zero),
            sync_each=self.sync_each,
            recompute=self.recompute,
            recompute_layers=options.recompute_layers if self.recompute else 0,
        )


SAVINGS = tuple(
    MemorySaving(zero, recompute, sync_each)
    for recompute, sync_each in product((False, True), repeat=2)
    for zero in (range(SHARDS_GRADIENTS, 4) if sync_each else range(4))
)
"""From those that cost the least time to those that hold the least."""


def shapes(question: PlanRequest, graph: OperatorGraph) -> Iterator[tuple[tuple[int, ...], int]]:
    """All stages and numbers of micro-batches to consider, the simplest first."""
    mesh_factors = factors(question.cluster)
    possible = [m for m in micro_batches(graph) if m == 1 or m * len(units(graph)) <= MOST_TASKS]
    for stages in _stages(question, mesh_factors, len(units(graph))):
        count = GlobalConfig(stages, Options()).degree(mesh_factors)
        yield from ((stages, micro) for micro in _micro_batches(question, count, possible))


def zero_group_sizes(question: PlanRequest, zero: int) -> tuple[int, ...]:
    """Among how many devices in a row a stage of ZeRO may shard: all, or those of a level."""
    wanted = option(question.constraints, SHARD_WITHIN)
    if not zero:
        return (0,)
    return (0, *level_group_sizes(question.cluster)) if wanted is None else (wanted,)


def framed(
    question: PlanRequest, stages: tuple[int, ...], micro: int, saving: MemorySaving
) -> GlobalConfig:
    """A global config with the user's own options."""
    options = replace(
        question.training,
        micro_batches=micro,
        zero=saving.zero,
        shard_within=zero_group_sizes(question, saving.zero)[0],
        sync_each=saving.sync_each,
        recompute=saving.recompute,
        bucket=option(question.constraints, BUCKET) or 0,
    )
    return GlobalConfig(stages, options)


def savings(constraints: Constraints, micro: int) -> list[MemorySaving]:
    """The ways to save that are allowed with so many micro-batches: a single one is summed once,
    whatever is said of each.
    """
    zero, recompute = option(constraints, ZERO), option(constraints, RECOMPUTE)
    each = option(constraints, SYNC_EACH)
    least = 1 if option(constraints, SHARD_WITHIN) else 0
    return [
        saving
        for saving in SAVINGS
        if zero in (None, saving.zero) and recompute in (None, int(saving.recompute))
        if each in (None, int(saving.sync_each)) and (each or micro > 1 or not saving.sync_each)
        if saving.zero >= least
    ]


def stages_of(roles: Codes) -> tuple[int, ...]:
    """The factors along which a plan's stages sit: all units at one coordinate, not all at the
    same.
    """
    seated = (roles <= at(0)).all(axis=0) & (roles != roles[:1]).any(axis=0)
    return tuple(np.flatnonzero(seated).tolist())


def neighbours(
    question: PlanRequest, graph: OperatorGraph, global_config: GlobalConfig
) -> list[GlobalConfig]:
    """Global configs that differ in one option."""
    options, micro = global_config.options, global_config.options.micro_batches
    wanted = option(question.constraints, BUCKET)
    changed = [replace(options, bucket=size) for size in BUCKETS if wanted in (None, size)]
    now = MemorySaving(options.zero, options.recompute, options.sync_each)
    changed += [
        saving.on(options)
        for saving in savings(question.constraints, micro)
        if saving == now._replace(sync_each=not now.sync_each)
        or (
            (saving.recompute == now.recompute or saving.zero == now.zero)
            and saving.sync_each == (now.sync_each and saving.zero >= SHARDS_GRADIENTS)
        )
    ]
    within = zero_group_sizes(question, options.zero)
    changed += [replace(options, shard_within=devices) for devices in within]
    if option(question.constraints, MICRO_BATCHES) is None:
        always = bool(option(question.constraints, SYNC_EACH))
        changed += [
            replace(
                options, micro_batches=other, sync_each=options.sync_each and (other > 1 or always)
            )
            for other in _beside(graph, micro)
        ]
    return [
        GlobalConfig(global_config.stages, variant) for variant in changed if variant != options
    ]


def _beside(graph: OperatorGraph, micro: int) -> list[int]:
    """The next numbers of micro-batches, and those next to half and twice as many."""
    possible = micro_batches(graph)
    fewer = [m for m in possible if m < micro]
    more = [m for m in possible if m > micro]
    half, twice = [m for m in fewer if 2 * m <= micro], [m for m in more if m >= 2 * micro]
    return list(dict.fromkeys((*fewer[-1:], *more[:1], *half[-1:], *twice[:1])))


@once
def micro_batches(graph: OperatorGraph) -> tuple[int, ...]:
    """Into how many micro-batches a step can be cut."""
    extents = [extent for unit in units(graph) for extent in unit.sample_extents]
    return tuple(m for m in divisors(min(extents, default=1)) if supports_micro_batches(graph, m))


def _stages(
    question: PlanRequest, mesh_factors: Sequence[MeshFactor], units: int
) -> Iterator[tuple[int, ...]]:
    """The factors of the stages, first none, then level by level from few to many stages."""
    constraints, cluster = question.constraints, question.cluster
    runs = [tuple(sorted(run)) for run in stage_runs(constraints, cluster)]
    if option(constraints, STAGES) is not None or any(sitting(constraints, cluster)):
        yield from (run for run in runs if _count(run, mesh_factors) <= units)
        return
    within = [run for run in runs if len({mesh_factors[f].level for f in run}) <= 1]
    first = {
        (mesh_factors[run[0]].level if run else NO_LEVEL, _count(run, mesh_factors)): run
        for run in within[::-1]
    }
    yield from (first[key] for key in sorted(first) if key[1] <= min(MOST_STAGES, units))


def _count(run: Sequence[int], mesh_factors: Sequence[MeshFactor]) -> int:
    return math.prod(mesh_factors[f].size for f in run)


def _micro_batches(question: PlanRequest, stages: int, possible: Sequence[int]) -> list[int]:
    wanted = option(question.constraints, MICRO_BATCHES)
    if wanted is not None:
        return [wanted] if wanted in possible else []
    if stages == 1:
        return thinned(possible)
    wished = [stages * slots for slots in SLOTS]
    even = [m for m in wished if m in possible]
    return even or _nearest(wished, possible)


def _nearest(wished: Sequence[int], possible: Sequence[int]) -> list[int]:
    """For each wish the least that is possible and as many, or the most; 1 is always possible.

    >>> _nearest([12, 24, 6, 3], [1, 2, 4, 8, 16])
    [16, 8, 4]
    """
    counts = (min((m for m in possible if m >= wish), default=max(possible)) for wish in wished)
    return list(dict.fromkeys(counts))
