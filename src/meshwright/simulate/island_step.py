"""Step-time prediction of a plan over islands: 1F1B pipeline, cross-island reduction, memory.
Enters: an `IslandPlan`. Leaves: an `IslandPrediction`.

Each part is simulated by the simulator of regular plans. With p(i) what one more micro-batch takes
a part and r(i) = step(i) - p(i) the rest of its step (update, reductions inside the island):

    one stage    T = max over parts of step(i)  +  reduction
    stages       T = sum of pace(s) + (K - 1) max over stages of max(pace(s), crossing(s))
                     + sum of crossing over cuts + max of r(i) + reduction
                     + that of weights which several stages read
                 pace(s) = max over its parts of p(i),  K micro-batches, one after the other (1F1B)

`reduction` is that of the gradients across the parts of a stage: in each island reduce-scatter (the
first half of what the island's own plan does), across islands an all-reduce of matching shards,
inside an all-gather, level by level where that is cheaper (`collectives.gather`). A group of unlike
members is priced as if all were like each of them in turn (`IslandCluster.like`), by the cost
models of all other collectives, and the longest counts. It begins when the slowest part has ended,
as it is run. Memory is each part's against its own device;
of stages with the activations of all micro-batches that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.collectives.gather import cheapest_gather
from meshwright.collectives.islands.cheapest_island_program import crossing_line
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.pattern import PatternUse
from meshwright.cost.tables import pricer_of
from meshwright.plan.island_plan import (
    IslandPart,
    IslandPlan,
    IslandPrediction,
    collective_pricer,
    gradient_bytes,
    tied_weights,
)
from meshwright.plan.plan import Plan, Prediction
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import prices_of, simulate


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What composing needs to know of a part."""

    prediction: Prediction
    pace: Seconds
    """What one more micro-batch takes; the whole step where a part is not cut."""


@lru_cache(maxsize=64)
def _prices(cluster: Cluster, backend: str) -> CollectivePrices:
    return CollectivePrices(collective_pricer(cluster, backend))


@lru_cache(maxsize=64)
def _operators(cluster: Cluster) -> OperatorPricer:
    return pricer_of(cluster.device)


def simulated_part(plan: Plan) -> Prediction:
    """What is predicted of a part by itself."""
    prices = _prices(plan.cluster, plan.backend) if not plan.programs else prices_of(plan)
    return simulate(plan, prices, _operators(plan.cluster)).prediction


def predicted(plan: IslandPlan) -> IslandPrediction:
    """What a plan over islands costs.

    Each part is simulated; of stages also with one micro-batch more, whose difference is the pace.
    """
    from meshwright.simulate.island_paces import simulate_stage_pace

    if plan.stages == 1:
        figures = [
            PartFigures(prediction=prediction, pace=prediction.step)
            for prediction in (simulated_part(part.plan) for part in plan.parts)
        ]
    else:
        figures = [simulate_stage_pace(part.plan, plan.micro_batches) for part in plan.parts]
    return compose_prediction(plan, figures)


def compose_prediction(
    plan: IslandPlan, figures: Sequence[PartFigures], crossings: Sequence[float] | None = None
) -> IslandPrediction:
    """The prediction of a plan whose parts are known, and perhaps what crosses between stages."""
    by_part = dict(zip(range(len(plan.parts)), figures, strict=True))
    of_stage = {
        number: [n for n, part in enumerate(plan.parts) if part.stage == number]
        for number in range(plan.stages)
    }
    reductions = [reduction(plan.cluster, plan.stage(number)) for number in range(plan.stages)]
    missing = 0
    for number, island_part in enumerate(plan.parts):
        held, device = figures[number].prediction.memory, island_part.plan.cluster.device
        under_way = min(plan.stages - island_part.stage, plan.micro_batches) - 1
        total = held.total + under_way * held.activations if plan.stages > 1 else held.total
        missing = max(missing, total - device.memory)
    if plan.stages == 1:
        return IslandPrediction(
            step=Seconds(max(figure.prediction.step for figure in figures) + reductions[0]),
            parts=tuple(figure.prediction for figure in figures),
            reduction=Seconds(reductions[0]),
            missing=Bytes(missing),
        )
    paces = [max(by_part[n].pace for n in of_stage[s]) for s in range(plan.stages)]
    cuts = list(crossings or ()) or [
        crossing(plan.cluster, plan.stage(s), plan.stage(s + 1), plan.micro_batches)
        for s in range(plan.stages - 1)
    ]
    beside = [max(cuts[max(s - 1, 0) : s + 1]) for s in range(plan.stages)]
    slowest = max(max(pace, cut) for pace, cut in zip(paces, beside, strict=True))
    rest = max(
        max(by_part[n].prediction.step - by_part[n].pace for n in of_stage[s]) + reductions[s]
        for s in range(plan.stages)
    )
    tied = sum(_tied(plan, stages, names) for stages, names in tied_weights(plan))
    step = sum(paces) + (plan.micro_batches - 1) * slowest + sum(cuts) + max(rest, 0.0) + tied
    return IslandPrediction(
        step=Seconds(step),
        parts=tuple(figure.prediction for figure in figures),
        paces=tuple(figure.pace for figure in figures),
        reduction=Seconds(max(reductions) + tied),
        transfer=Seconds(sum(cuts)),
        missing=Bytes(missing),
    )


def reduction(cluster: IslandCluster, parts: Sequence[IslandPart]) -> float:
    """Seconds of the reduction of gradients across the parts of a stage."""
    if len(parts) < 2:
        return 0.0
    total = gradient_bytes(parts[0].plan.graph.parameters)
    return max(_reduced(cluster, part, len(parts), total) for part in parts)


def _tied(plan: IslandPlan, stages: Sequence[int], names: Sequence[str]) -> float:
    """Seconds of the sum over stages of the gradients of weights that they share."""
    parts = [part for number in stages for part in plan.stage(number)]
    graph = parts[0].plan.graph
    total = sum(graph.specs[name].bytes for name in names)
    return max(_reduced(plan.cluster, part, len(parts), total) for part in parts)


def _reduced(cluster: IslandCluster, part: IslandPart, members: int, total: int) -> float:
    part_cluster = part.plan.cluster
    held = total / part_cluster.devices
    across = _across(cluster, part, members, Collective.ALL_REDUCE, held)
    if part_cluster.devices == 1 or part.plan.options.zero >= 2:
        return across
    return (
        across + cheapest_gather(collective_pricer(part_cluster, part.plan.backend), held).seconds
    )


def crossing(
    cluster: IslandCluster,
    senders: Sequence[IslandPart],
    receivers: Sequence[IslandPart],
    micro: int,
) -> float:
    """Seconds of what one micro-batch sends from a stage to the next, and of its gradients."""
    sizes = sum(
        tensor.spec.bytes
        for tensor in receivers[0].plan.graph.inputs
        if tensor.name in senders[0].plan.graph.producers
    )
    # The first receiver has its share of the samples only.
    whole = sizes * sum(receiver.share for receiver in receivers) / receivers[0].share
    longest = 0.0
    for part in (*senders, *receivers):
        held = whole * part.share / sum(p.share for p in receivers) / micro
        held /= part.plan.cluster.devices
        longest = max(longest, _across(cluster, part, 2, Movement.SEND, held))
    return 2 * longest


def _across(
    cluster: IslandCluster, part: IslandPart, members: int, operation: Operation, held: float
) -> float:
    """Seconds of a collective across islands that are all like a part, on each of its devices."""
    island = Island(name=part.islands[0], cluster=part.plan.cluster)
    like = cluster.like(island, members)
    pricer = collective_pricer(like, part.plan.backend)
    return crossing_line(pricer, operation, PatternUse.EVERY, held).at(held)
