"""The uniform configuration nearest to a plan: weighted vote, k-best assignment (Lawler 1972).
Enters: a `Plan`. Leaves: `Uniform`: one axis (DP, TP, CP, PP) for each mesh factor, and the
`ParallelConfig` of it.

A plan gives every op group a layout of its own; other systems give every factor of the machine one
axis for the whole model. Each op group votes for the axis that its role on a factor means, with its
work (FLOPs of both passes) as weight. Of the assignments a of axes to factors f that the model's
counts divide the one with the most votes is taken:

    maximise  sum over f of votes[f][a(f)]      `assignments`, best first (Lawler 1972, with a heap)
    such that heads, layers, positions, samples and experts divide        `configs.refusals`

A factor on which nothing is cut counts as data. Targets are not known here.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.baselines.degrees.configured import with_virtual_stage_layers
from meshwright.baselines.degrees.facts import EXPERT, Facts, layer_starts, transformer_facts
from meshwright.baselines.degrees.parallel_config import INNERMOST_FIRST, Axis, ParallelConfig
from meshwright.baselines.degrees.refusals import divisibility_problems
from meshwright.baselines.degrees.sequence import sequence_splits
from meshwright.baselines.roles import named_split, work
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import IDLE, REPLICA
from meshwright.sharding.unit import OpGroup

Taken = Mapping[Axis, tuple[int, ...]]
"""The factors of each axis, by number."""

Votes = tuple[Mapping[Axis, int], ...]
"""For each factor the work that each axis does on it."""

MOST_TRIED = 20_000
"""Assignments that are looked at, at most."""


class Uniform(msgspec.Struct, frozen=True, kw_only=True):
    """One axis for each mesh factor, and what follows from it."""

    config: ParallelConfig
    taken: dict[Axis, tuple[int, ...]]
    share: float
    """How much of the plan's work is laid out by these axes."""
    transformer: bool
    """Whether the model has repeated attention layers; others are laid out along samples only."""


def uniform_of(plan: Plan) -> Uniform:
    """The configuration that says most of a plan."""
    votes = votes_of(plan)
    total = sum(map(work, plan.units)) * len(plan.factors)
    try:
        facts = transformer_facts(plan.graph)
    except InputError:
        return _along_samples(plan, votes, total)
    sizes = [factor.size for factor in plan.factors]
    for axes in islice(assignments(votes), MOST_TRIED):
        taken: dict[Axis, tuple[int, ...]] = {
            axis: tuple(f for f, assigned in enumerate(axes) if assigned == axis)
            for axis in INNERMOST_FIRST
        }
        degrees = {axis: math.prod(sizes[f] for f in held) for axis, held in taken.items()}
        config = _config(plan, facts, degrees, taken)
        if config is not None:
            agreed = sum(votes[f][axis] for f, axis in enumerate(axes))
            share = agreed / total if total else 1.0
            return Uniform(config=config, taken=taken, share=share, transformer=True)
    raise InputError(
        f"no degrees of data, tensor, context and pipeline parallelism on {plan.cluster.devices} "
        f"devices divide the model's {facts.heads} heads, {facts.layers} layers and "
        f"{facts.samples} samples",
        "plan with another batch, or run the plan itself with 'meshwright run'",
    )


def votes_of(plan: Plan) -> Votes:
    """For each factor how much work each axis does on it."""
    positions = sequence_splits(plan.units)
    votes: list[Counter[Axis]] = [Counter({"data": 0}) for _ in plan.factors]
    rows = [0] * len(votes)
    """Work on rows that are samples x positions, as of experts: cut by data or by context."""
    for number, unit in enumerate(plan.units):
        weight = work(unit)
        for factor, role in enumerate(plan.layout[unit.name].roles):
            axis = _axis(unit, role, positions.get(number))
            if axis == "data" and number not in positions:
                rows[factor] += weight
            elif axis is not None and weight:
                votes[factor][axis] += weight
    for counts, weight in zip(votes, rows, strict=True):
        counts["context" if counts["context"] > counts["data"] else "data"] += weight
    return tuple(votes)


def _axis(unit: OpGroup, role: str, positions: int | None) -> Axis | None:
    """What a role on a factor is called; None where nothing is cut."""
    if role == REPLICA:
        return None
    if role.startswith(IDLE):
        return "pipeline"
    split = named_split(unit, role)
    if split == unit.samples or role == EXPERT:
        return "data"
    if split is not None and split == positions:
        return "context"
    return "tensor" if split is None or unit.splits[split].role != "sample" else "data"


def assignments(votes: Votes) -> Iterator[tuple[Axis, ...]]:
    """Assignments of axes to factors, those with the most votes first.

    >>> list(assignments(({"data": 3, "tensor": 2}, {"data": 0, "tensor": 2})))
    [('data', 'tensor'), ('tensor', 'tensor'), ('data', 'data'), ('tensor', 'data')]
    """
    choices = [sorted(counts.items(), key=lambda pair: -pair[1]) for counts in votes]

    def value(numbers: Sequence[int]) -> int:
        return sum(ranked[number][1] for ranked, number in zip(choices, numbers, strict=True))

    first = (0,) * len(choices)
    queue, seen = [(-value(first), first)], {first}
    while queue:
        _, numbers = heapq.heappop(queue)
        yield tuple(ranked[number][0] for ranked, number in zip(choices, numbers, strict=True))
        for factor, ranking in enumerate(choices):
            nearby = (*numbers[:factor], numbers[factor] + 1, *numbers[factor + 1 :])
            if nearby[factor] < len(ranking) and nearby not in seen:
                seen.add(nearby)
                heapq.heappush(queue, (-value(nearby), nearby))


def _config(
    plan: Plan, facts: Facts, degrees: Mapping[Axis, int], taken: Taken
) -> ParallelConfig | None:
    """The configuration of some degrees, if the model's counts divide."""
    options = plan.options
    if facts.samples % degrees["data"]:
        return None
    runs = runs_of(plan, taken["pipeline"])
    chunks = max(1, len(runs) // degrees["pipeline"]) if options.schedule == "interleaved" else 1
    draft = ParallelConfig(
        data=degrees["data"],
        tensor=degrees["tensor"],
        context=degrees["context"],
        pipeline=degrees["pipeline"],
        expert=_experts(plan),
        folded=_folded(plan, taken["tensor"]),
        chunks=chunks,
        micro_batches=_micro_batches(options.micro_batches, facts.samples // degrees["data"]),
        schedule="1f1b" if options.schedule == "interleaved" else options.schedule,
        zero=options.zero,
        sync_each=options.sync_each,
        shard_within=options.shard_within,
        recompute=options.recompute,
        recompute_layers=options.recompute_layers,
        sequence=degrees["tensor"] > 1 and facts.positions % degrees["tensor"] == 0,
        uneven=facts.layers % degrees["pipeline"] != 0,
        optimizer=options.optimizer,
        mixed=options.mixed,
    )
    for config in (draft, msgspec.structs.replace(draft, chunks=1)):
        own_runs = len(runs) == config.pipeline * config.chunks > 1
        staged = with_virtual_stage_layers(config, runs) if own_runs else config
        if not divisibility_problems(facts, staged):
            return staged
    return None


def _micro_batches(planned: int, samples: int) -> int:
    return max(count for count in divisors(samples) if count <= planned)


def _experts(plan: Plan) -> int:
    """How many ways experts are spread, in most of the work."""
    ways: Counter[int] = Counter()
    for unit in plan.units:
        if EXPERT in unit.extents:
            ways[plan.layout[unit.name].degrees(plan.factors).get(EXPERT, 1)] += work(unit)
    return ways.most_common(1)[0][0] if ways else 1


def _folded(plan: Plan, tensor: Sequence[int]) -> bool:
    """Whether experts are spread over factors of the tensor axis."""
    layouts = (plan.layout[unit.name].roles for unit in plan.units if EXPERT in unit.extents)
    return any(roles[factor] == EXPERT for roles in layouts for factor in tensor)


def runs_of(plan: Plan, pipeline: Sequence[int]) -> tuple[int, ...]:
    """How many layers follow each other on one stage, run after run."""
    position = {operator.name: number for number, operator in enumerate(plan.graph.operators)}
    starts, seats = layer_starts(plan.graph), defaultdict[int, Counter[tuple[str, ...]]](Counter)
    for unit in plan.units:
        layer = sum(start <= position[unit.name] for start in starts) - 1
        roles = plan.layout[unit.name].roles
        seats[layer][tuple(roles[factor] for factor in pipeline)] += work(unit)
    seated = [seats[layer].most_common(1)[0][0] for layer in range(len(starts))]
    return tuple(len(list(run)) for _, run in groupby(seated))


def _along_samples(plan: Plan, votes: Votes, total: int) -> Uniform:
    """Data parallelism: what a model without attention layers is laid out by elsewhere."""
    options = plan.options
    config = ParallelConfig(
        data=plan.cluster.devices,
        micro_batches=options.micro_batches,
        zero=options.zero,
        sync_each=options.sync_each,
        shard_within=options.shard_within,
        recompute=options.recompute,
        recompute_layers=options.recompute_layers,
        optimizer=options.optimizer,
        mixed=options.mixed,
    )
    every: dict[Axis, tuple[int, ...]] = dict.fromkeys(INNERMOST_FIRST, ())
    every["data"] = tuple(range(len(plan.factors)))
    agreed = sum(counts["data"] for counts in votes)
    share = agreed / total if total else 1.0
    return Uniform(config=config, taken=every, share=share, transformer=False)
