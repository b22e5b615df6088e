"""Which calls are worth measuring. Enters: a graph. Leaves: calls, each once, in a fixed order.

They are what a search may ask for: every operator that is not a view, its pieces by each split at
each degree, and its pieces by two splits together. Left out are tensors made from nothing, which
are few and small and which PyTorch makes wherever it likes. Needs no torch and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec

from meshwright.foundation.errors import InputError
from meshwright.graph.families import family_of
from meshwright.graph.family import Split, replaced
from meshwright.graph.model import Attributes, Call, OperatorGraph, Spec
from meshwright.graph.pieces import pieces, splits_of

PLACES = ("first", "first_row")
"""Attributes that say where a piece lies: pieces that differ in nothing else cost the same."""


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
    whole = tuple(
        dict.fromkeys(
            in_dtype(graph.call(operator), dtype)
            for operator in graph.operators
            if any(operator.inputs) and not family_of(operator.kind).view
        )
    )
    found = dict.fromkeys(whole if 1 in degrees else ())
    parts = sorted({degree for degree in degrees if degree > 1})
    found |= dict.fromkeys(
        piece
        for call in whole
        for split in splits_of(call)
        for degree in parts
        for piece in _pieces(call, split, degree)
    )
    found |= dict.fromkeys(piece for call in whole for piece in _by_pairs(call, parts, largest))
    return tuple(found)


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


def representative(call: Call) -> Call:
    """The call that is measured for all calls which differ only in where they lie.

    >>> x = Spec("float32", (2,))
    >>> lying = (("first", 4), ("padding_idx", 0))
    >>> representative(Call(kind="k", inputs=(x,), outputs=(x,), attributes=lying)).attributes
    (('first', 0), ('padding_idx', 0))
    """
    places = {key: 0 for key in PLACES if call.get(key) is not None}
    attributes = replaced(call.attributes, **places)
    return msgspec.structs.replace(call, attributes=attributes)


def in_dtype(call: Call, dtype: str | None) -> Call:
    """A call with another dtype in place of float32.

    >>> x = Spec("float32", (2,))
    >>> in_dtype(Call(kind="relu", inputs=(x,), outputs=(x,)), "bfloat16").outputs
    (Spec(dtype='bfloat16', shape=(2,)),)
    """
    if dtype is None:
        return call
    return Call(
        kind=call.kind,
        inputs=tuple(None if spec is None else _spec_in(spec, dtype) for spec in call.inputs),
        outputs=tuple(_spec_in(spec, dtype) for spec in call.outputs),
        attributes=_attributes_in(call.attributes, dtype),
    )


def _spec_in(spec: Spec, dtype: str) -> Spec:
    return Spec(dtype, spec.shape) if spec.dtype == "float32" else spec


def _attributes_in(attributes: Attributes, dtype: str) -> Attributes:
    return tuple(
        (key, dtype if key == "dtype" and value == "float32" else value)
        for key, value in attributes
    )
