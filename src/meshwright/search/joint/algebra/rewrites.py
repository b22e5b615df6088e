"""Joint choice of rewrites and boundary layouts, by variable elimination on a forest. Enters: a
graph, rules, tables of segments. Leaves: whole graphs, each with the rewrites that made it.

A segment s reads at most one boundary tensor e(s) that needs a gradient and makes at most one l(s);
masks and rotary angles, which need none, pass by. Boundary tensors are the nodes of a cost network,
segments its edges, and with x_t the layout of tensor t and T_sv the table of variant v
(`explore_rewrites`)
    minimise over x  sum over s of min over v of T_sv[x_e(s), x_l(s)]                   `_cheapest`
A segment with one boundary is a cost of that node, one with none a constant. Each tensor is made by
one segment, so the network is a forest: variable elimination (`variable_elimination.cheapest`) is
exact. So algebra and layouts are chosen together. For each weight of gradient sums there is one
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.graph.canonical import Contents
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.search.joint.algebra.explore_rewrites import Costs, Variant, variants
from meshwright.search.joint.algebra.graph_segments import GraphSegment, segments
from meshwright.search.joint.algebra.segment_costs import SUMS, SegmentCosts, boundary_tensors
from meshwright.search.joint.algebra.stitch import stitch_segments
from meshwright.solvers.variable_elimination import CostGraph, cheapest

CANDIDATES, FEWEST = 160, 8
"""Graphs that are evaluated for all different segments together, and for each of them at least."""


class Rewritten(NamedTuple):
    """A graph, and what was done to the one that it was made of."""

    graph: OperatorGraph
    steps: tuple[str, ...]
    """For each rewrite the rule and the place, and how often it was applied."""


def rewritten(
    graph: OperatorGraph,
    rules: RuleSet,
    boundaries: SegmentCosts,
    enough: Callable[[], bool] = lambda: False,
    stay: frozenset[tuple[str, str]] = frozenset(),
) -> list[Rewritten]:
    """The cheapest graphs, one for each weight of gradient sums, without equal ones.

    Operators that `stay`, by name and kind, are in all of them.
    """
    pieces = segments(graph, rules)
    each = max(FEWEST, CANDIDATES // len({piece.alike for piece in pieces}))
    explored: dict[int, tuple[Variant, ...]] = {}
    for number, segment in enumerate(pieces):
        if segment.alike == number:
            copies = [other for other in pieces if other.alike == number]
            names = _staying(segment, copies, stay)
            explored[number] = _explored(segment, rules, boundaries, enough, names, each)
    rewrites: list[Rewritten] = []
    contents = Contents()
    seen = {contents.number(graph)}
    for weight in range(len(SUMS)):
        chosen = _cheapest(
            [boundary_tensors(piece) for piece in pieces],
            [[_part(v.costs, weight) for v in explored[piece.alike]] for piece in pieces],
        )
        stitched = stitch_segments(
            graph,
            pieces,
            [explored[piece.alike][v].graph for piece, v in zip(pieces, chosen, strict=True)],
        )
        number = contents.number(stitched)
        if number not in seen:
            seen.add(number)
            rewrites.append(Rewritten(stitched, _steps(pieces, explored, chosen)))
    return rewrites


def _staying(
    first: GraphSegment, copies: Sequence[GraphSegment], stay: frozenset[tuple[str, str]]
) -> set[tuple[str, str]]:
    """The operators of a segment that stay, in it or in one of its copies."""
    return {
        (one.name, one.kind)
        for copy in copies
        for one, other in zip(first.graph.operators, copy.graph.operators, strict=True)
        if (other.name, other.kind) in stay
    }


def _explored(
    segment: GraphSegment,
    rules: RuleSet,
    boundaries: SegmentCosts,
    enough: Callable[[], bool],
    stay: set[tuple[str, str]],
    candidates: int,
) -> tuple[Variant, ...]:
    least = boundaries.table(segment, segment.graph)

    def evaluate(graph: OperatorGraph) -> Costs:
        if graph is segment.graph:
            return least
        if not stay <= {(operator.name, operator.kind) for operator in graph.operators}:
            return np.full_like(least, np.inf)
        return boundaries.table(segment, graph)

    return variants(segment.graph, rules, evaluate, candidates=candidates, enough=enough).variants


def _part(table: Costs, weight: int) -> Costs:
    width = table.shape[1] // len(SUMS)
    return table[:, weight * width : (weight + 1) * width]


def _cheapest(
    ends: Sequence[tuple[str | None, str | None]], tables: Sequence[Sequence[Costs]]
) -> list[int]:
    """The variant of each segment, given the tensors that it reads and makes, that is cheapest."""
    least = [np.min(np.stack(variants), axis=0) for variants in tables]
    network, number = _network(ends, least)
    layouts = cheapest(network).choice
    at = [tuple(0 if end is None else layouts[number[end]] for end in pair) for pair in ends]
    return [
        int(np.argmin([table[place] for table in variants]))
        for variants, place in zip(tables, at, strict=True)
    ]


def _network(
    ends: Sequence[tuple[str | None, str | None]], tables: Sequence[Costs]
) -> tuple[CostGraph, dict[str, int]]:
    """Costs of the layouts of boundary tensors, and the node of each tensor."""
    names = dict.fromkeys(end for pair in ends for end in pair if end is not None)
    number = {name: n for n, name in enumerate(names)}
    nodes: list[Costs] = [np.zeros(0)] * len(number)
    edges: dict[tuple[int, int], Costs] = {}
    for segment_ends, table in zip(ends, tables, strict=True):
        for end, size in zip(segment_ends, table.shape, strict=True):
            if end is not None:
                nodes[number[end]] = np.zeros(size)
    for (enters, leaves), table in zip(ends, tables, strict=True):
        if enters is not None and leaves is not None:
            # The maker of a tensor comes before its readers, so nodes of edges are in order.
            edges[number[enters], number[leaves]] = table
        else:
            for end in filter(None, (enters, leaves)):
                nodes[number[end]] += table.reshape(-1)
    return CostGraph(nodes, edges), number


def _steps(
    pieces: Sequence[GraphSegment],
    explored: dict[int, tuple[Variant, ...]],
    chosen: Sequence[int],
) -> tuple[str, ...]:
    times: dict[tuple[int, int], int] = {}
    for piece, variant in zip(pieces, chosen, strict=True):
        times[piece.alike, variant] = times.get((piece.alike, variant), 0) + 1
    return tuple(
        f"{match}{f' ({count} times)' if count > 1 else ''}"
        for (alike, variant), count in times.items()
        for match in explored[alike][variant].chain
    )
