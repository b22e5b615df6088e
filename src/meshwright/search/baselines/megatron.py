"""Transformers as Megatron trains them (Shoeybi et al. 2019, Narayanan et al. 2021). Enters: a
graph with repeated attention layers, degrees. Leaves: a `Plan`.

Layers are cut inside (`tensor`) along the innermost factors; pipeline stages, of equal numbers of
layers each, sit at coordinates of the outermost; all other factors cut samples. Norms, residuals,
embeddings and the head are copies on the factors inside: vocabulary-parallel losses are not
claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.foundation.integers import require_whole
from meshwright.graph.layers import layers
from meshwright.graph.model import OperatorGraph
from meshwright.parallel.layout import REPLICA, Factor, Layout, factors
from meshwright.parallel.units import Unit, units
from meshwright.plan.model import Options, Plan
from meshwright.search.baselines.roles import (
    batch_factors,
    cutting,
    inside_machine,
    seat,
    with_samples,
)
from meshwright.search.baselines.tensor import ATTENTION, tensor_splits


def megatron_inside(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Tensor parallel on as many factors inside a machine as heads allow, data parallel besides."""
    parts, own = units(graph), factors(cluster)
    splits = _checked_splits(graph, parts)
    cuts = [(parts[number], split) for number, split in splits.items()]
    tensor = cutting(cuts, inside_machine(cluster), own)
    planned = _layouts(parts, own, splits, tensor)
    return Plan.of("expert: megatron", graph, cluster, planned)


def megatron(
    graph: OperatorGraph, cluster: Cluster, tensor: int, pipeline: int, micro_batches: int
) -> Plan:
    """Tensor, pipeline and data parallelism with these degrees; data takes what is left."""
    parts, own = units(graph), factors(cluster)
    require_whole(micro_batches, "the number of micro-batches is")
    splits = _checked_splits(graph, parts)
    outer = _run(own, pipeline, range(len(own)), "pipeline")
    inner = _run(own, tensor, reversed(range(len(own))), "tensor")
    if set(outer) & set(inner):
        raise InputError(
            f"tensor {tensor} and pipeline {pipeline} take more than {cluster.devices} devices",
            "give degrees that multiply to a divisor of the devices",
        )
    uncut = [parts[n].name for n, split in splits.items() if not parts[n].cuttable(split, tensor)]
    if uncut:
        raise InputError(
            f"{uncut[0]!r} cannot be cut {tensor} ways", "give a degree that divides the heads"
        )
    stages = _stages(graph, parts, pipeline)
    room = [own[factor] for factor in outer]
    seats = [dict(zip(outer, seat(stage, room), strict=True)) for stage in stages]
    planned = _layouts(parts, own, splits, inner, seats, micro_batches)
    options = Options(micro_batches=micro_batches)
    origin = f"megatron tensor {tensor} pipeline {pipeline} micro-batches {micro_batches}"
    return Plan.of(origin, graph, cluster, planned, options)


def _checked_splits(graph: OperatorGraph, parts: Sequence[Unit]) -> dict[int, int]:
    splits = tensor_splits(graph, parts)
    cut = {member.operator for number in splits for member in parts[number].members}
    heads = [op for op in graph.operators if op.name in cut and op.kind in (ATTENTION, "softmax")]
    if len(heads) < 2:
        raise InputError(
            f"graph {graph.name!r} has no repeated attention layers that heads can cut",
            "use Megatron for transformers",
        )
    return splits


def _layouts(
    parts: Sequence[Unit],
    own: Sequence[Factor],
    splits: dict[int, int],
    tensor: Sequence[int],
    seats: Sequence[dict[int, str]] | None = None,
    micro_batches: int = 1,
) -> list[Layout]:
    taken = {*tensor, *(seats[0] if seats else ())}
    free = [factor for factor in range(len(own)) if factor not in taken]
    batch = batch_factors(parts, free, own, micro_batches)
    found = []
    for number, unit in enumerate(parts):
        split = splits.get(number)
        name = REPLICA if split is None else unit.splits[split].name
        roles = dict.fromkeys(tensor, name) | (seats[number] if seats else {})
        found.append(with_samples(roles, unit, batch, own, micro_batches))
    return found


def _run(own: Sequence[Factor], degree: int, order: Iterable[int], what: str) -> list[int]:
    """The factors, taken in an order, that multiply to a degree; sorted."""
    require_whole(degree, f"the degree of {what} is")
    found: list[int] = []
    possible = [1]
    for factor in order:
        if math.prod(own[f].size for f in found) == degree:
            break
        found.append(factor)
        possible.append(possible[-1] * own[factor].size)
    if math.prod(own[f].size for f in found) != degree:
        raise InputError(
            f"the degree of {what} is {degree}, which no run of the cluster's factors gives",
            f"give one of {', '.join(map(str, possible))}",
        )
    return sorted(found)


def _stages(graph: OperatorGraph, parts: Sequence[Unit], count: int) -> list[int]:
    """The stage of each unit: equal numbers of repeated layers, and what comes before them."""
    heads = {
        position
        for position, operator in enumerate(graph.operators)
        if operator.kind in (ATTENTION, "softmax")
    }
    starts = [
        repeat.layer(index).start
        for repeat in layers(graph)
        if heads.intersection(repeat.layer(0))
        for index in range(repeat.count)
    ]
    if count > 1 and (not starts or len(starts) % count):
        raise InputError(
            f"{len(starts)} repeated layers cannot be cut into {count} equal stages",
            "give a number of stages that divides the layers",
        )
    firsts = [starts[i * len(starts) // count] for i in range(1, count)]
    position = {operator.name: number for number, operator in enumerate(graph.operators)}
    return [sum(position[unit.name] >= first for first in firsts) for unit in parts]
