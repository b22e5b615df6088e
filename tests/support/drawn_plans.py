"""Random legal plans that say everything a plan can say. Enters: a seed. Leaves: plans of tiny
models of the zoo on small machines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.factors import summed_hierarchy
from meshwright.collectives.synthesize import synthesize
from meshwright.cost.collective import Collective
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.script import Script
from meshwright.lower.transfers import GroupCollective
from meshwright.plan.options import SCHEDULES, Options
from meshwright.plan.plan import Plan, PlannedChain, PlannedReduction
from meshwright.rewrite.graphs.match import Matcher
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.sharding.layout import (
    IDLE,
    REPLICA,
    Layout,
    checked_layout,
    factors,
    inner_group_sizes,
)
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support.executed import tiny
from support.machines import machine
from support.plan_features import all_steps

MODELS = tuple(entry.name for entry in ENTRIES)

SIZES = ((2, 2), (2, 2), (2, 3), (2, 2, 2), (4,))
"""Of machines; the innermost level of the last is a ring."""

TRIES = 200

Place = tuple[int | None, ...]
"""For each factor the coordinate at which a stage sits, None if at all."""


class Drawn(NamedTuple):
    """A plan, and of what."""

    model: str
    batch: int
    dtype: str
    rewrites: tuple[str, ...]
    plan: Plan

    @property
    def key(self) -> str:
        """What tells models with their values apart."""
        return f"{self.model} {self.batch} {self.dtype}"


def one_device(drawn: Drawn) -> Plan:
    """The same graph on a single device, with as many micro-batches."""
    options = Options(micro_batches=drawn.plan.options.micro_batches)
    graph, alone = drawn.plan.graph, machine(1)
    return Plan.of("one device", graph, alone, [Layout(()) for _ in units(graph)], options)


def drawn_plans(
    seed: int, models: Sequence[str] = MODELS, dtype: str = "float64"
) -> Iterator[Drawn]:
    """Plans without end, of one model after the other."""
    rng = random.Random(seed)
    while True:
        for model in models:
            yield _drawn(model, dtype, rng)


def _drawn(model: str, dtype: str, rng: random.Random) -> Drawn:
    while True:
        batch = rng.choice(_batches(model))
        graph = tiny(model, batch, dtype).graph
        steps: tuple[str, ...] = ()
        if rng.random() < 0.3:
            graph, steps = rewritten(model, batch, dtype, rng.randrange(3))
        try:
            return Drawn(model, batch, dtype, steps, _plan(graph, _cluster(rng), rng))
        except InputError:
            # Micro-batches that a model does not allow, or schedules that a pipeline does not.
            continue


@cache
def _batches(model: str) -> tuple[int, ...]:
    """Batch sizes; of normalised models such that a micro-batch has at least 4 samples.

    A mean over two numbers leaves their signs alone: on one device, too, 1e-15 in the parameters
    becomes 1e-3 in the loss of ResNet-101 after five steps with micro-batches of two samples.
    """
    kinds = {operator.kind for operator in tiny(model, 8).graph.operators}
    return (16, 16, 24, 18) if "batch_norm" in kinds else (8, 8, 12, 6)


def _cluster(rng: random.Random) -> Cluster:
    sizes = rng.choice(SIZES)
    cluster = machine(*sizes)
    return cluster if len(sizes) > 1 else wired(cluster)


def wired(cluster: Cluster) -> Cluster:
    """The same with the members of the innermost level in a ring."""
    inner = cluster.levels[-1]
    boundary = inner.links[0]
    ring = msgspec.structs.replace(boundary, name="ring", kind="ring")
    level = msgspec.structs.replace(inner, links=(boundary, ring))
    return msgspec.structs.replace(cluster, levels=(*cluster.levels[:-1], level))


@cache
def rewritten(
    model: str, batch: int, dtype: str, seed: int
) -> tuple[OperatorGraph, tuple[str, ...]]:
    """A graph that computes the same, and the rules that made it."""
    rng = random.Random(seed)
    matcher = Matcher(tiny(model, batch, dtype).graph, algebra())
    steps = []
    for _ in range(rng.randint(1, 3)):
        if not matcher.matches:
            break
        match = rng.choice(matcher.matches)
        matcher = matcher.rewrite(match)
        steps.append(match.rule.name)
    return matcher.graph, tuple(steps)


def _plan(graph: OperatorGraph, cluster: Cluster, rng: random.Random) -> Plan:
    count, schedule = rng.choice((1, 1, 2, 4, 3)), rng.choice(SCHEDULES)
    zero = rng.choice((0, 0, 1, 2, 3))
    neighbours = inner_group_sizes(factors(cluster)) if zero else ()
    options = Options(
        micro_batches=count,
        schedule=schedule,
        recompute=rng.random() < 0.3,
        recompute_layers=0 if count == 1 else 1,
        zero=zero,
        sync_each=zero > 1 and rng.random() < 0.5,
        shard_within=rng.choice((0, *neighbours)),
        bucket=Bytes(rng.choice((0, 4096, 10**6))),
    )
    groups = units(graph)
    places = _places(groups, cluster, options, rng)
    idle = options.micro_batches == 1 and rng.random() < 0.5
    plan = Plan.of(
        "drawn", graph, cluster, _layouts(groups, cluster, places, options, idle, rng), options
    )
    return _with_programs(plan, rng)


def _places(
    groups: Sequence[OpGroup], cluster: Cluster, options: Options, rng: random.Random
) -> list[Place]:
    """Where each unit sits: stages of a pipeline, or nowhere in particular."""
    sizes = [factor.size for factor in factors(cluster)]
    everywhere: Place = (None,) * len(sizes)
    if options.micro_batches == 1 or rng.random() < 0.2:
        return [everywhere] * len(groups)
    stages = _stages(sizes, rng)
    chunks = 2 if options.schedule == "interleaved" and rng.random() < 0.7 else 1
    parts = stages * chunks
    if len(groups) < len(parts):
        return [everywhere] * len(groups)
    cuts = sorted(rng.sample(range(1, len(groups)), len(parts) - 1))
    bounds = zip((0, *cuts), (*cuts, len(groups)), strict=True)
    return [
        place
        for place, (first, last) in zip(parts, bounds, strict=True)
        for _ in range(last - first)
    ]


def _stages(sizes: Sequence[int], rng: random.Random) -> list[Place]:
    """One for each coordinate of a factor; of two factors, or of unequal width, at times."""
    free = (None,) * (len(sizes) - 1)
    stages: list[Place] = [(coordinate, *free) for coordinate in range(sizes[0])]
    if len(sizes) == 1 or rng.random() < 0.6:
        return stages
    beyond = (None,) * (len(sizes) - 2)
    finer: list[Place] = [(0, coordinate, *beyond) for coordinate in range(sizes[1])]
    if rng.random() < 0.5:
        return [*finer, *stages[1:]]
    return [(one, two, *beyond) for one in range(sizes[0]) for two in range(sizes[1])]


def _layouts(
    groups: Sequence[OpGroup],
    cluster: Cluster,
    places: Sequence[Place],
    options: Options,
    idle: bool,
    rng: random.Random,
) -> list[Layout]:
    before: tuple[str, ...] = ()
    layouts: list[Layout] = []
    for unit, place in zip(groups, places, strict=True):
        layout = _alone(place)
        for _ in range(TRIES):
            roles = before if before and rng.random() < 0.4 else _roles(unit, cluster, idle, rng)
            # What sits somewhere sits where its stage does.
            roles = tuple(
                role if at is None else f"{IDLE}{at}"
                for at, role in zip(place, _everywhere(roles, idle), strict=True)
            )
            if _legal(Layout(roles), unit, cluster, options):
                layout = Layout(roles)
                break
        layouts.append(layout)
        before = layout.roles
    return layouts


def _everywhere(roles: tuple[str, ...], idle: bool) -> tuple[str, ...]:
    return roles if idle else tuple(REPLICA if r.startswith(IDLE) else r for r in roles)


def _alone(place: Place) -> Layout:
    return Layout(tuple(REPLICA if at is None else f"{IDLE}{at}" for at in place))


def _roles(unit: OpGroup, cluster: Cluster, idle: bool, rng: random.Random) -> tuple[str, ...]:
    """All kinds of roles alike likely."""
    by_role: dict[str, list[str]] = {}
    for split in unit.splits:
        by_role.setdefault(split.role, []).append(split.name)
    chosen = []
    for factor in factors(cluster):
        kinds = [*by_role, *by_role, REPLICA, *([IDLE] if idle else [])]
        kind = rng.choice(kinds)
        if kind == IDLE:
            chosen.append(f"{IDLE}{rng.randrange(factor.size)}")
        else:
            chosen.append(rng.choice(by_role.get(kind, [kind])))
    return tuple(chosen)


def _legal(layout: Layout, unit: OpGroup, cluster: Cluster, options: Options) -> bool:
    cluster_factors = factors(cluster)
    try:
        checked_layout(layout, unit.extents, cluster_factors, unit.name)
    except InputError:
        return False
    degrees, micro = layout.degrees(cluster_factors), options.micro_batches
    return all(
        unit.cuttable(number, degrees.get(split.name, 1) * unit.micro_ways(number, micro))
        for number, split in enumerate(unit.splits)
    )


def _with_programs(plan: Plan, rng: random.Random) -> Plan:
    """With random programs for some of its sums, at two sizes."""
    sums = dict.fromkeys(
        (step.inside, step.beside)
        for step in all_steps(Script(plan))
        if isinstance(step, GroupCollective)
    )
    chosen = [
        PlannedReduction(
            over=inside, beside=beside, bytes=size, program=_program(plan, inside, beside, rng)
        )
        for inside, beside in sums
        if rng.random() < 0.6
        for size in (64.0, 4096.0)
    ]
    chains = tuple(_chains(plan, rng))
    return msgspec.structs.replace(plan, programs=tuple(chosen), chains=chains)


def _chains(plan: Plan, rng: random.Random) -> Iterator[PlannedChain]:
    """Random steps for some of its other collectives."""
    script = Script(plan)
    collectives = {
        (step.kind, step.inside): None
        for step in all_steps(script)
        if isinstance(step, GroupCollective) and step.kind is not Collective.ALL_REDUCE
    }
    shards = [kept.shards for bucket in script.buckets for kept in bucket.parameters if kept.shards]
    for kind in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        collectives |= {(kind, shard): None for shard in shards}
    for kind, over in collectives:
        if len(over) > 1 and rng.random() < 0.6:
            order = rng.sample(over, len(over))
            cut = rng.randrange(1, len(over))
            steps = tuple(sorted(order[:cut])), tuple(sorted(order[cut:]))
            yield PlannedChain(collective=kind.value, over=over, bytes=64.0, steps=steps)


def _program(plan: Plan, inside: Sequence[int], beside: Sequence[int], rng: random.Random) -> str:
    bits, others = (sum(1 << f for f in factor_set) for factor_set in (inside, beside))
    return str(rng.choice(_programs(plan.cluster, bits, others)))


@cache
def _programs(cluster: Cluster, inside: int, beside: int) -> tuple[str, ...]:
    hierarchy = summed_hierarchy(cluster, inside, beside)
    return tuple(str(program) for program in synthesize(hierarchy, limit=3))
