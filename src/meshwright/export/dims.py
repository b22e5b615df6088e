"""Sizes of a transformer, as other systems ask for them. Enters: a graph with repeated attention
layers. Leaves: `Dims`: widths, tables and experts besides the counts of `Facts`.

All are read off parameters: the width of the largest table, the inputs of the last product of a
layer, experts by the tables that a router chooses from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.facts import Facts, facts_of, layer_starts
from meshwright.graph.families.embedding import KINDS as TABLES
from meshwright.graph.model import Operator, OperatorGraph

GATED = 2
"""Products of a feed-forward layer that widen, if one gates the other."""


class Dims(NamedTuple):
    """Sizes besides those that degrees must divide."""

    facts: Facts
    hidden: int
    inner: int
    """Width of the feed-forward layers, or of one expert."""
    vocabulary: int
    gated: bool
    learned_positions: bool
    tied: bool
    """Whether the head is the table of words."""
    chosen: int
    """Experts of a token; 0 if there are none."""
    dtype: str


def dims_of(graph: OperatorGraph) -> Dims:
    """The sizes of a transformer of words."""
    facts, shapes = facts_of(graph), _shapes(graph)
    tables = [shapes[own.inputs[0] or ""] for own in graph.operators if own.kind in TABLES]
    if not tables:
        raise InputError(
            f"graph {graph.name!r} has no table of words",
            "flags of a model's sizes are for language models; export --to pytorch",
        )
    vocabulary, hidden = max(tables)
    layer = list(_products(graph, shapes))
    widening = [shape for shape in layer if hidden in shape and shape != (hidden, hidden)]
    inner = max((max(shape) for shape in widening), default=4 * hidden)
    return Dims(
        facts=facts,
        hidden=hidden,
        inner=inner,
        vocabulary=vocabulary,
        gated=sum(set(shape) == {hidden, inner} for shape in layer) > GATED,
        learned_positions=any(rows >= facts.positions for rows, _ in sorted(tables)[:-1]),
        tied=any(own.also for own in graph.parameters if shapes[own.tensor.name] == max(tables)),
        chosen=_chosen(graph) if facts.experts else 0,
        dtype=graph.parameters[0].tensor.dtype,
    )


def _shapes(graph: OperatorGraph) -> dict[str, tuple[int, ...]]:
    return {
        own.tensor.name: tuple(extent for _, extent in own.tensor.dims) for own in graph.parameters
    }


def _products(
    graph: OperatorGraph, shapes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """The weights of products of the first layer, one expert's for those of experts."""
    starts = layer_starts(graph)
    seen: set[str] = set()
    for operator in graph.operators[starts[0] : starts[1]]:
        for name in operator.inputs:
            shape = shapes.get(name or "", ())
            if name is not None and len(shape) > 1 and name not in seen:
                seen.add(name)
                yield shape[-2:]


def _chosen(graph: OperatorGraph) -> int:
    """How many experts a token has: the width of what the router keeps."""

    def width(operator: Operator) -> int:
        return operator.outputs[0].dims[-1][1]

    return next((width(own) for own in graph.operators if own.kind == "topk"), 1)
