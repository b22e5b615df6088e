"""The families by the kind of operator they tell about; users add their own with `register`.

>>> from meshwright.graph.families.elementwise import Elementwise
>>> register("mylib.swish", Elementwise(keeps="inputs"))
>>> family_of("mylib.swish").view
False
>>> forget("mylib.swish")
"""

from __future__ import annotations

from meshwright.foundation.errors import InputError
from meshwright.graph.families import (
    arrangement,
    attention,
    convolution,
    creation,
    elementwise,
    embedding,
    indexing,
    losses,
    normalisation,
    parallel,
    pooling,
    products,
    recurrent,
    reductions,
    reshape,
    sections,
    softmax,
)
from meshwright.graph.families.opaque import Opaque
from meshwright.graph.family import Family

_FILES = (
    products, convolution, pooling, attention, embedding, recurrent, normalisation, softmax, losses,
    elementwise, reductions, reshape, arrangement, sections, indexing, creation,
    parallel,
)  # fmt: skip

BUILT_IN: dict[str, Family] = {kind: own for file in _FILES for kind, own in file.KINDS.items()}
"""Every kind that comes with Meshwright."""

_registered: dict[str, Family] = {}
_OPAQUE = Opaque()


def family_of(kind: str) -> Family:
    """The family of a kind; the opaque one if nobody told about it."""
    return BUILT_IN.get(kind) or _registered.get(kind) or _OPAQUE


def is_known(kind: str) -> bool:
    """Whether somebody told about a kind."""
    return kind in BUILT_IN or kind in _registered


def register(kind: str, family: Family) -> None:
    """Tell about a kind of your own, which is then captured, counted and split like any other."""
    if is_known(kind):
        raise InputError(
            f"the kind {kind!r} is known already", "give your operator a name of its own"
        )
    _registered[kind] = family


def forget(kind: str) -> None:
    """Undo a `register`."""
    _registered.pop(kind, None)
