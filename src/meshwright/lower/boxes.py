"""Boxes of tensor elements (hyperrectangles): a half-open interval for each dim. Enters and leaves:
boxes; no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshwright.graph.pieces import Box


def full(shape: Sequence[int]) -> Box:
    """All of a tensor.

    >>> full((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, size) for size in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """How many elements it has along each dim."""
    return tuple(last - first for first, last in box)


def elements(box: Box) -> int:
    """How many elements it has."""
    return math.prod(shape_of(box))


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share, None if nothing.

    >>> overlap(((0, 4),), ((2, 6),)), overlap(((0, 2),), ((2, 4),))
    (((2, 4),), None)
    """
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(last <= first for first, last in shared) else shared


def within(box: Box, frame: Box) -> Box:
    """A box as seen from the first element of another."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(box, frame, strict=True))


def beyond(box: Box, frame: Box) -> Box:
    """The inverse of `within`: a box inside of a frame as seen from outside.

    >>> beyond(((1, 2),), ((10, 20),))
    ((11, 12),)
    """
    return tuple((a + c, b + c) for (a, b), (c, _) in zip(box, frame, strict=True))


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that holds all of them.

    >>> hull([((0, 2),), ((5, 6),)])
    ((0, 6),)
    """
    return tuple(
        (min(first for first, _ in dim), max(last for _, last in dim))
        for dim in zip(*boxes, strict=True)
    )
