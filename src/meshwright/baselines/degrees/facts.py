"""What of a model degrees must divide. Enters: a graph. Leaves: `Facts`: layers, heads, positions,
samples, experts; and where its layers begin. Knows nothing of machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.once import once
from meshwright.baselines.tensor import ATTENTION
from meshwright.graph.layers import layers
from meshwright.graph.model import OperatorGraph
from meshwright.sharding.units import units

ATTENDING = (ATTENTION, "softmax")
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
def facts_of(graph: OperatorGraph) -> Facts:
    """The counts of a graph with repeated attention layers."""
    heads, positions = {0}, {0}
    for extents in _extents(graph):
        heads.update(extents.get("head", ()))
        positions.update(extents.get("query", ()))
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
        samples=min((own.dims[0][1] for own in graph.inputs if own.dims), default=1),
        experts=min(experts, default=0),
    )


def _extents(graph: OperatorGraph) -> Iterator[dict[str, tuple[int, ...]]]:
    for unit in units(graph):
        attends = any(member.call.kind in ATTENDING for member in unit.members)
        if attends or EXPERT in unit.extents:
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
