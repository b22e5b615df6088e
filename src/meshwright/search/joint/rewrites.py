"""Graphs that compute the same and may be split better. Enters: a graph, rules, tables of segments.
Leaves: whole graphs, each with the rewrites that made it.

With T_s[x, y] the least cost of segment s between layouts x and y of its boundaries, over all its
variants (`variants`), the cheapest choice of variants and boundary layouts is that of a chain:
    v_0 = 0,   v_s+1[y] = min over x of v_s[x] + T_s[x, y]                              `_cheapest`
So algebra and layouts are chosen together. For each weight of gradient sums there is one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.graph.canonical import Contents
from meshwright.graph.model import OperatorGraph
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.search.joint.boundaries import SUMS, Boundaries
from meshwright.search.joint.recompose import recomposed
from meshwright.search.joint.segments import Segment, segments
from meshwright.search.joint.variants import Costs, Variant, variants

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
    boundaries: Boundaries,
    enough: Callable[[], bool] = lambda: False,
    stay: frozenset[tuple[str, str]] = frozenset(),
) -> list[Rewritten]:
    """The cheapest graphs, one for each weight of gradient sums, without equal ones.

    Operators that `stay`, by name and kind, are in all of them.
    """
    pieces = segments(graph, rules)
    each = max(FEWEST, CANDIDATES // len({own.alike for own in pieces}))
    explored: dict[int, tuple[Variant, ...]] = {}
    for number, own in enumerate(pieces):
        if own.alike == number:
            copies = [other for other in pieces if other.alike == number]
            names = _staying(own, copies, stay)
            explored[number] = _explored(own, rules, boundaries, enough, names, each)
    found: list[Rewritten] = []
    contents = Contents()
    seen = {contents.number(graph)}
    for weight in range(len(SUMS)):
        chosen = _cheapest([[_part(v.costs, weight) for v in explored[s.alike]] for s in pieces])
        made = recomposed(
            graph,
            pieces,
            [explored[own.alike][v].graph for own, v in zip(pieces, chosen, strict=True)],
        )
        number = contents.number(made)
        if number not in seen:
            seen.add(number)
            found.append(Rewritten(made, _steps(pieces, explored, chosen)))
    return found


def _staying(
    first: Segment, copies: Sequence[Segment], stay: frozenset[tuple[str, str]]
) -> set[tuple[str, str]]:
    """The operators of a segment that stay, in it or in one of its copies."""
    return {
        (one.name, one.kind)
        for copy in copies
        for one, other in zip(first.graph.operators, copy.graph.operators, strict=True)
        if (other.name, other.kind) in stay
    }


def _explored(
    own: Segment,
    rules: RuleSet,
    boundaries: Boundaries,
    enough: Callable[[], bool],
    stay: set[tuple[str, str]],
    candidates: int,
) -> tuple[Variant, ...]:
    least = boundaries.table(own, own.graph)

    def evaluate(graph: OperatorGraph) -> Costs:
        if graph is own.graph:
            return least
        if not stay <= {(operator.name, operator.kind) for operator in graph.operators}:
            return np.full_like(least, np.inf)
        return boundaries.table(own, graph)

    return variants(own.graph, rules, evaluate, candidates=candidates, enough=enough).variants


def _part(table: Costs, weight: int) -> Costs:
    width = table.shape[1] // len(SUMS)
    return table[:, weight * width : (weight + 1) * width]


def _cheapest(tables: Sequence[Sequence[Costs]]) -> list[int]:
    """The variant of each segment on the cheapest way through all."""
    value = np.zeros(1)
    ways = []
    for own in tables:
        stack = value[None, :, None] + np.stack(own)
        flat = stack.reshape(-1, stack.shape[2])
        ways.append((flat.argmin(axis=0), stack.shape[1]))
        value = flat.min(axis=0)
    at = int(value.argmin())
    chosen = []
    for best, rows in reversed(ways):
        variant, at = divmod(int(best[at]), rows)
        chosen.append(variant)
    return chosen[::-1]


def _steps(
    pieces: Sequence[Segment],
    explored: dict[int, tuple[Variant, ...]],
    chosen: Sequence[int],
) -> tuple[str, ...]:
    times: dict[tuple[int, int], int] = {}
    for own, variant in zip(pieces, chosen, strict=True):
        times[own.alike, variant] = times.get((own.alike, variant), 0) + 1
    return tuple(
        f"{match}{f' ({count} times)' if count > 1 else ''}"
        for (alike, variant), count in times.items()
        for match in explored[alike][variant].chain
    )
