"""Algebra first: the graph that is cheapest on one device, before anything is split. Enters: a
graph, seconds of operators. Leaves: a graph that computes the same, and the rules that lead to it.

The cost of a graph is the sum over its operators of forward and backward seconds; each distinct
segment is searched by itself (`explore_rewrites`, with one boundary layout) and all its copies
follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from meshwright.graph.counts import input_needs_grad
from meshwright.graph.family import Wanted
from meshwright.graph.operator_graph import Call, OperatorGraph
from meshwright.search.joint.algebra.explore_rewrites import (
    Chain,
    Costs,
    Evaluate,
    algebra,
    variants,
)
from meshwright.search.joint.algebra.graph_segments import GraphSegment, gradients_within, segments
from meshwright.search.joint.algebra.stitch import stitch_segments

SecondsOf = Callable[[Call, Wanted], float]
"""Both passes of an operator, the backward one for the gradients that are wanted."""


class Sequential(NamedTuple):
    """The graph, and what was applied to the first segment of each kind."""

    graph: OperatorGraph
    chains: tuple[Chain, ...]
    seconds: float


def sequential(
    graph: OperatorGraph, seconds_of: SecondsOf, excluded: Iterable[str] = ()
) -> Sequential:
    """The cheapest graph on one device that best-first search over rewrites finds.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter w: float32[o=6, k=8]
    ... operator h: h: float32[n=4, o=6] = linear(x, w)
    ... operator y: y: float32[n=4, o=6] = relu(h)
    ... output y''')
    >>> found = sequential(graph, lambda call, wanted: 1 + sum(wanted))
    >>> print(found.seconds, *(match.rule.name for chain in found.chains for match in chain))
    2.0 linear-relu-fuse
    """
    rules = algebra(excluded)
    pieces = segments(graph, rules)
    best = {
        number: min(
            variants(piece.graph, rules, one_device(piece, seconds_of)).variants,
            key=lambda variant: float(variant.costs[0, 0]),
        )
        for number, piece in enumerate(pieces)
        if piece.alike == number
    }
    return Sequential(
        graph=stitch_segments(graph, pieces, [best[piece.alike].graph for piece in pieces]),
        chains=tuple(variant.chain for variant in best.values()),
        seconds=sum(float(best[piece.alike].costs[0, 0]) for piece in pieces),
    )


def one_device(segment: GraphSegment, seconds_of: SecondsOf) -> Evaluate:
    """What variants of a segment cost where nothing is split."""

    def evaluate(graph: OperatorGraph) -> Costs:
        needing = gradients_within(segment, graph)
        total = 0.0
        for operator in graph.operators:
            wanted = input_needs_grad(operator, needing)
            flowing = any(tensor.name in needing for tensor in operator.outputs)
            total += seconds_of(graph.call(operator), wanted if flowing else (False,) * len(wanted))
        return np.full((1, 1), total)

    return evaluate
