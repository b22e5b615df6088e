"""Model counts (layers, heads, positions, experts) that parallelism degrees must divide. Enters: a
graph. Leaves: `Facts`: layers, heads, positions, samples, experts; and where its layers begin.
Knows nothing of machines.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.once import once
from meshwright.baselines.tensor import ATTENTION
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units

SOFTMAX = "softmax"
ATTENDING = (ATTENTION, SOFTMAX)
SCORES = ("dim1", "dim2", "dim3")
"""The splits besides samples of a softmax over scores, as attention that is written out has it
between its products: heads, queries, keys."""

EXPERT = "expert"
"""The split of grouped products that cuts their experts."""


class Facts(NamedTuple):
    """Counts of a transformer."""

    layers: int
    heads: int
    key_value_heads: int
    positions: int
    samples: int
    """In a step."""
    experts: int
    """0 if there are none."""


@once
def transformer_facts(graph: OperatorGraph) -> Facts:
    """The counts of a graph with repeated attention layers."""
    heads, positions = {0}, {0}
    for extents in _extents(graph):
        head, query = attended(extents)
        heads.update(extents.get(head, ()))
        positions.update(extents.get(query, ()))
    starts = layer_starts(graph)
    if len(starts) < 2 or heads == {0}:
        raise InputError(
            f"graph {graph.name!r} has no repeated attention layers that heads can cut",
            "degrees of tensor, context and pipeline parallelism are for transformers; "
            "plan other models with 'meshwright plan'",
        )
    known = heads - {0}
    experts = {n for extents in _extents(graph) for n in extents.get(EXPERT, ())}
    return Facts(
        layers=len(starts),
        heads=max(known),
        key_value_heads=min(known),
        positions=max(positions),
        samples=min((tensor.dims[0][1] for tensor in graph.inputs if tensor.dims), default=1),
        experts=min(experts, default=0),
    )


def attends(unit: OpGroup) -> bool:
    """Whether attention is computed in a unit."""
    return any(member.call.kind in ATTENDING for member in unit.members)


def attended(splits: Container[str]) -> tuple[str, str]:
    """What cuts heads, and what cuts queries of an attention with some splits: those of the
    operator, or of the scores' softmax where attention is written as products around it.
    """
    written = "head" not in splits and all(name in splits for name in SCORES)
    return (SCORES[0], SCORES[1]) if written else ("head", "query")


def _extents(graph: OperatorGraph) -> Iterator[dict[str, tuple[int, ...]]]:
    for unit in units(graph):
        if attends(unit) or EXPERT in unit.extents:
            yield unit.extents


@once
def layer_starts(graph: OperatorGraph) -> tuple[int, ...]:
    """The positions at which repeated layers with attention begin."""
    attending = {n for n, operator in enumerate(graph.operators) if operator.kind in ATTENDING}
    return tuple(
        repeat.layer(index).start
        for repeat in layers(graph)
        if attending.intersection(repeat.layer(0))
        for index in range(repeat.count)
    )
