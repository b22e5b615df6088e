"""Sharding of one operator: a split carried out as pieces with their boxes. Enters: a call, one of
its splits, a number of parts. Leaves: the pieces.

A piece says which box of each input it reads, which box of each output it makes and which call it
runs in between. Parts are equal, the last perhaps shorter. Where the pieces lie is not known here.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.families import family_of
from meshwright.graph.family import Family, Split, replaced
from meshwright.graph.operator_graph import Call, Spec

PLACES = ("first", "first_row", "first_class", "first_key", "first_hidden")
"""Attributes that say where a piece lies: pieces that differ in nothing else cost the same."""

Box = tuple[tuple[int, int], ...]
"""For each dim the first element and the last + 1."""


class CallPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an operator's work."""

    call: Call
    inputs: tuple[Box | None, ...]
    outputs: tuple[Box, ...]


def splits_of(call: Call) -> tuple[Split, ...]:
    """Every way to cut an operator into two parts or more.

    >>> x, w = Spec("float32", (8, 3)), Spec("float32", (5, 3))
    >>> linear = Call(kind="linear", inputs=(x, w), outputs=(Spec("float32", (8, 5)),))
    >>> [(split.name, split.role, split.extent) for split in splits_of(linear)]
    [('sample', 'sample', 8), ('channel', 'parameter', 5), ('inner', 'reduction', 3)]
    """
    return _splits(family_of(call), call)


def named_split_of(call: Call, name: str) -> Split:
    """A split of a call by its name, even of a piece that has but one unit of it left."""
    return next(split for split in family_of(call).splits(call) if split.name == name)


@lru_cache(maxsize=1 << 16)
def _splits(family: Family, call: Call) -> tuple[Split, ...]:
    return tuple(split for split in family.splits(call) if split.extent > 1)


def bounds(extent: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Where the parts begin and end.

    >>> bounds(8, 3)
    ((0, 3), (3, 6), (6, 8))
    """
    size = part_size(extent, parts)
    return tuple((start, min(start + size, extent)) for start in range(0, extent, size))


def part_size(extent: int, parts: int) -> int:
    """The size of every part but perhaps the last."""
    size = -(-extent // parts)
    if size * (parts - 1) >= extent:
        raise InputError(
            f"{extent} units do not make {parts} parts of which only the last is shorter",
            f"cut them into {-(-extent // size)}",
        )
    return size


def pieces(call: Call, split: Split, parts: int) -> tuple[CallPiece, ...]:
    """The parts of a call, each with what it reads, makes and runs.

    >>> x, w, b = Spec("float32", (8, 4)), Spec("float32", (5, 4)), Spec("float32", (5,))
    >>> linear = Call(kind="linear", inputs=(x, w, b), outputs=(Spec("float32", (8, 5)),))
    >>> for piece in pieces(linear, splits_of(linear)[2], 2):
    ...     print(piece.inputs)
    (((0, 8), (0, 2)), ((0, 5), (0, 2)), ((0, 5),))
    (((0, 8), (2, 4)), ((0, 5), (2, 4)), None)
    """
    return tuple(piece_of(call, split, start, stop) for start, stop in bounds(split.extent, parts))


@lru_cache(maxsize=1 << 16)
def largest_piece(call: Call, split: Split, parts: int) -> Call:
    """What the busiest part runs: the first, or, where windows reach over cuts, one that has
    neighbours on both sides.
    """
    if parts == 1:
        return call
    size = part_size(split.extent, parts)
    first = piece_of(call, split, 0, size).call
    if split.halo is None or 2 * size > split.extent:
        return first
    return max(first, piece_of(call, split, size, 2 * size).call, key=lambda piece: piece.bytes)


def piece_of(call: Call, split: Split, start: int, stop: int) -> CallPiece:
    """The part of a call from unit start to unit stop of a split."""
    inputs = tuple(
        None
        if spec is None or (index in split.once and start > 0)
        else _input_box(spec, split, index, start, stop)
        for index, spec in enumerate(call.inputs)
    )
    outputs = tuple(
        _box(spec, dim, split.extent, start, stop)
        for spec, dim in zip(call.outputs, split.outputs, strict=True)
    )
    piece = Call(
        kind=call.kind,
        inputs=tuple(
            None if spec is None or box is None else _cut(spec, box)
            for spec, box in zip(call.inputs, inputs, strict=True)
        ),
        outputs=tuple(map(_cut, call.outputs, outputs)),
        attributes=family_of(call).piece(call, split, start, stop),
    )
    return CallPiece(call=piece, inputs=inputs, outputs=outputs)


def _input_box(spec: Spec, split: Split, index: int, start: int, stop: int) -> Box:
    dim = split.inputs[index]
    if split.halo is None or index > 0 or dim is None:
        return _box(spec, dim, split.extent, start, stop)
    first, last, _, _ = split.halo.reads(start, stop, spec.shape[dim])
    whole = _box(spec, None, 1, 0, 1)
    return (*whole[:dim], (first, last), *whole[dim + 1 :])


def _box(spec: Spec, dim: int | None, extent: int, start: int, stop: int) -> Box:
    """Units start to stop of a dim, all of the others."""
    box = [(0, size) for size in spec.shape]
    if dim is not None:
        size = spec.shape[dim]
        box[dim] = (start * size // extent, stop * size // extent)
    return tuple(box)


def _cut(spec: Spec, box: Box) -> Spec:
    return Spec(spec.dtype, tuple([last - first for first, last in box]))


def representative(call: Call) -> Call:
    """The call that stands for all calls which differ only in where they lie.

    >>> x = Spec("float32", (2,))
    >>> lying = (("first", 4), ("padding_idx", 0))
    >>> representative(Call(kind="k", inputs=(x,), outputs=(x,), attributes=lying)).attributes
    (('first', 0), ('padding_idx', 0))
    """
    places = {key: 0 for key in PLACES if call.get(key) is not None}
    if not places:
        return call
    attributes = replaced(call.attributes, **places)
    return msgspec.structs.replace(call, attributes=attributes)
