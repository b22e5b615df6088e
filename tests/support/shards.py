"""Tensors in pieces, with PyTorch. Enters: tensors, operators. Leaves: tensors in pieces.

A tensor in pieces is held as its whole, with steps, copies and sums in front, beside the type that
says where the cuts lie: cutting along an axis and putting together again move nothing, and rows
of neighbours are looked up when a piece is read. What the parallel operators do is defined by
`meshwright.rewrite.language.shards`; here gradients flow through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from meshwright.rewrite.language.types import FRONT, STEP, Type, TypedAxis, infer, over, plain, rank


class Pieces(NamedTuple):
    """A tensor in pieces: `whole` has an axis for each axis of the type."""

    type: Type
    whole: Tensor

    @property
    def is_plain(self) -> bool:
        """Whether it is one piece, with nothing in front."""
        return self.type == plain(self.whole.shape[FRONT:])


def in_one_piece(value: Tensor) -> Pieces:
    """A tensor that nobody has cut.

    >>> in_one_piece(torch.zeros(2, 3)).whole.shape
    torch.Size([1, 1, 1, 2, 3])
    """
    return Pieces(plain(value.shape), value[(None,) * FRONT])


def moved(operator: str, attributes: Sequence[object], pieces: Pieces) -> Pieces:
    """What a parallel operator makes; a `MisfitError` if it cannot take its operand.

    >>> x = in_one_piece(torch.tensor([1.0, 2.0]))
    >>> moved("reduce", ("copies", 2), moved("replicate", (2,), x)).whole.flatten()
    tensor([2., 4.])
    """
    (type_,) = infer(operator, attributes, (pieces.type,))
    if operator in ("partition", "combine", "halo"):
        return Pieces(type_, pieces.whole)
    number, degree = over(operator, attributes, rank(pieces.type))
    match operator:
        case "replicate":
            whole = torch.cat([pieces.whole] * degree, number)
        case "reduce":
            whole = torch.unflatten(pieces.whole, number, (degree, -1)).sum(number)
        case "pipeline":
            parts = torch.unflatten(pieces.whole, number, (degree, -1))
            whole = parts.movedim(number, STEP + 1).flatten(STEP, STEP + 1)
        case _:
            parts = torch.unflatten(pieces.whole, STEP, (-1, degree))
            whole = parts.movedim(STEP + 1, number).flatten(number, number + 1)
    return Pieces(type_, whole)


def without_overlap(pieces: Pieces) -> Pieces:
    """The same pieces without the rows of their neighbours."""
    return Pieces(tuple(axis._replace(before=0, after=0) for axis in pieces.type), pieces.whole)


def piece(pieces: Pieces, front: tuple[int, ...], places: Sequence[int]) -> Tensor:
    """One piece: `front` says of which step, copy and sum, `places` which along each dim.

    >>> x = moved("partition", (0, 2), in_one_piece(torch.arange(4)))
    >>> piece(moved("halo", (0, 1, 0), x), (0, 0, 0), [1])
    tensor([1, 2, 3])
    """
    value = pieces.whole[front]
    for dim, (axis, place) in enumerate(zip(pieces.type[FRONT:], places, strict=True)):
        value = _rows(value, dim, axis, place)
    return value


def _rows(value: Tensor, dim: int, axis: TypedAxis, place: int) -> Tensor:
    """The rows of one piece and of its neighbours, zeros beyond the edge."""
    length = axis.size // axis.degree
    first, last = place * length - axis.before, (place + 1) * length + axis.after
    begin, end = max(first, 0), min(last, axis.size)
    rows = value.narrow(dim, begin, end - begin)
    if (begin, end) == (first, last):
        return rows
    # `functional.pad` begins with the last dim.
    return functional.pad(rows, [0, 0] * (value.dim() - 1 - dim) + [begin - first, last - end])
