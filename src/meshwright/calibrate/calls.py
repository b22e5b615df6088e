"""Operator calls to profile: whole operators and their shards, each once. Enters: a graph. Leaves:
calls, each once, in a fixed order.

They are what a search may ask for: every operator that is not a view, its pieces by each split at
each degree, and its pieces by two splits together. Left out are tensors made from nothing, which
are few and small and which PyTorch makes wherever it likes. Needs no torch and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from meshwright.base.errors import InputError
from meshwright.graph.cast import cast_graph
from meshwright.graph.families import family_of
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import Call, OperatorGraph
from meshwright.graph.pieces import pieces, representative, splits_of


def calls_to_measure(
    graph: OperatorGraph,
    degrees: Sequence[int] = (1, 2, 4, 8),
    dtype: str | None = None,
    *,
    largest: int = 8,
) -> tuple[Call, ...]:
    """Distinct calls: whole operators, then pieces by one split, then pieces by two.

    Two splits together make at most `largest` parts. A dtype takes the place of float32.
    """
    cast = graph if dtype is None else cast_graph(graph, dtype)
    whole = tuple(
        dict.fromkeys(
            cast.call(operator)
            for operator in cast.operators
            if any(operator.inputs) and not family_of(operator).view
        )
    )
    calls = dict.fromkeys(whole if 1 in degrees else ())
    parts = sorted({degree for degree in degrees if degree > 1})
    calls |= dict.fromkeys(
        piece
        for call in whole
        for split in splits_of(call)
        for degree in parts
        for piece in _pieces(call, split, degree)
    )
    calls |= dict.fromkeys(piece for call in whole for piece in _by_pairs(call, parts, largest))
    return tuple(calls)


def _by_pairs(call: Call, parts: Sequence[int], largest: int) -> Iterator[Call]:
    for one, other in combinations(splits_of(call), 2):
        for first in parts:
            for half in _pieces(call, one, first):
                again = next((s for s in splits_of(half) if s.name == other.name), None)
                for second in parts:
                    if again is not None and first * second <= largest:
                        yield from _pieces(half, again, second)


def _pieces(call: Call, split: Split, parts: int) -> Iterator[Call]:
    """The distinct pieces of a call; none if the split does not make that many."""
    try:
        cut = pieces(call, split, parts)
    except InputError:
        return
    yield from dict.fromkeys(representative(piece.call) for piece in cut)
