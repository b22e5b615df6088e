"""Slicing and concatenation: slice, split, cat, stack, expand, repeat, pad ...

Every dim may be cut but the one along which parts are taken or put together. An expanded dim may
be cut too: every part reads the one element there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.broadcasting import stretched
from meshwright.graph.families.elementwise import promoted
from meshwright.graph.family import (
    Family,
    ShapeError,
    Split,
    along,
    integer,
    integers,
    name_of,
    position,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec

_UNBOUNDED = 2**63 - 1
"""What ATen writes for the end of a slice that has none."""


def with_size(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    """A shape with one size changed.

    >>> with_size((2, 3, 4), 1, 7)
    (2, 7, 4)
    """
    return (*shape[:dim], size, *shape[dim + 1 :])


@final
class Slice(Family):
    """slice and narrow: a range of one dim."""

    view = True

    def _range(self, call: Call) -> tuple[int, range]:
        x = tensor(call, 0).shape
        dim = position(integer(call, "dim", 0), len(x))
        start = call.get("start")
        first = start if isinstance(start, int) else 0
        if call.kind == "narrow":
            first = first % x[dim] if x[dim] else 0
            return dim, range(first, first + integer(call, "length"))
        end = call.get("end")
        last = end if isinstance(end, int) else _UNBOUNDED
        return dim, range(x[dim])[first : last : integer(call, "step", 1)]

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The elements of the range."""
        x = tensor(call, 0)
        dim, kept = self._range(call)
        return (Spec(x.dtype, with_size(x.shape, dim, len(kept))),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        named_dim, _ = self._range(call)
        dims = range(len(call.outputs[0].shape))
        return tuple(along(dim, call, (dim,)) for dim in dims if dim != named_dim)


@final
class Select(Family):
    """One position of a dim, which goes away."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One dim less."""
        x = tensor(call, 0)
        dim = position(integer(call, "dim", 0), len(x.shape))
        position(integer(call, "index"), x.shape[dim])
        return (Spec(x.dtype, x.shape[:dim] + x.shape[dim + 1 :]),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        named_dim = position(integer(call, "dim", 0), len(tensor(call, 0).shape))
        rank = len(call.outputs[0].shape)
        return tuple(along(dim, call, (dim + (dim >= named_dim),)) for dim in range(rank))


@final
class Cut(Family):
    """split, split_with_sizes, chunk and unbind: one output for each part of a dim."""

    view = True

    def _sizes(self, call: Call, size: int) -> list[int]:
        if call.kind == "chunk":
            return _runs(size, -(-size // integer(call, "chunks")))
        whole = integers(call, "split_sizes", ()) or integers(call, "split_size", ())
        if len(whole) == 1 and call.kind == "split":
            return _runs(size, whole[0])
        if sum(whole) != size:
            raise ShapeError(f"the parts {whole} do not add up to {size}")
        return list(whole)

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The parts."""
        x = tensor(call, 0)
        dim = position(integer(call, "dim", 0), len(x.shape))
        if call.kind == "unbind":
            return (Spec(x.dtype, x.shape[:dim] + x.shape[dim + 1 :]),) * x.shape[dim]
        sizes = self._sizes(call, x.shape[dim])
        return tuple(Spec(x.dtype, with_size(x.shape, dim, size)) for size in sizes)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        x = tensor(call, 0).shape
        named_dim = position(integer(call, "dim", 0), len(x))
        gone = call.kind == "unbind"
        return tuple(
            along(dim - (gone and dim > named_dim), call, (dim,))
            for dim in range(len(x))
            if dim != named_dim
        )


def _runs(size: int, run: int) -> list[int]:
    """Runs of one length, the last perhaps shorter."""
    return [min(run, size - start) for start in range(0, size, run)] if run else [0]


@final
class Concatenate(Family):
    """Tensors one after the other along a dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The sizes along the dim add up."""
        specs = [tensor(call, i) for i in range(len(call.inputs))]
        first = specs[0]
        dim = position(integer(call, "dim", 0), len(first.shape))
        total = sum(spec.shape[dim] for spec in specs)
        for spec in specs:
            if with_size(spec.shape, dim, total) != with_size(first.shape, dim, total):
                raise ShapeError(f"{first.shape} and {spec.shape} differ outside dim {dim}")
        return (Spec(promoted(tuple(specs)), with_size(first.shape, dim, total)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        rank = len(call.outputs[0].shape)
        named_dim = position(integer(call, "dim", 0), rank)
        count = len(call.inputs)
        return tuple(along(dim, call, (dim,) * count) for dim in range(rank) if dim != named_dim)


@final
class Stack(Family):
    """Tensors side by side along a new dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One more dim."""
        specs = [tensor(call, i) for i in range(len(call.inputs))]
        shape = specs[0].shape
        if any(spec.shape != shape for spec in specs):
            raise ShapeError(f"the shapes {[spec.shape for spec in specs]} differ")
        dim = position(integer(call, "dim", 0), len(shape) + 1)
        return (Spec(promoted(tuple(specs)), (*shape[:dim], len(specs), *shape[dim:])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All old dims."""
        rank = len(call.outputs[0].shape)
        named_dim = position(integer(call, "dim", 0), rank)
        count = len(call.inputs)
        return tuple(
            along(dim, call, (dim - (dim > named_dim),) * count)
            for dim in range(rank)
            if dim != named_dim
        )


@final
class Expand(Family):
    """Dims of size 1 stretched, new dims in front."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for; -1 keeps a dim."""
        x, size = tensor(call, 0), integers(call, "size")
        padded = (1,) * (len(size) - len(x.shape)) + x.shape
        for have, wanted in zip(padded, size, strict=True):
            if have not in (1, wanted) and wanted != -1:
                raise ShapeError(f"{x.shape} does not stretch to {size}")
        shape = tuple(
            have if wanted == -1 else wanted for have, wanted in zip(padded, size, strict=True)
        )
        return (Spec(x.dtype, shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        x, rank = tensor(call, 0).shape, len(call.outputs[0].shape)
        return tuple(along(dim, call, (stretched(x, dim, rank),)) for dim in range(rank))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The size of the piece."""
        dim = split.outputs[0]
        if dim is None:
            return call.attributes
        size = with_size(call.outputs[0].shape, dim, stop - start)
        return replaced(call.attributes, size=size)


@final
class Repeat(Family):
    """The whole tensor so many times along each dim: dims with more than one copy stay whole."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Each size times its copies."""
        x, copies = tensor(call, 0), integers(call, "repeats")
        padded = (1,) * (len(copies) - len(x.shape)) + x.shape
        return (Spec(x.dtype, tuple(n * c for n, c in zip(padded, copies, strict=True))),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Dims with one copy."""
        x, copies = tensor(call, 0).shape, integers(call, "repeats")
        new = len(copies) - len(x)
        return tuple(
            along(dim, call, (dim - new,))
            for dim, count in enumerate(copies)
            if count == 1 and dim >= new
        )


@final
class RepeatInterleave(Family):
    """Each element so many times in a row along a dim."""

    def _dim(self, call: Call) -> int:
        return position(integer(call, "dim", 0), len(tensor(call, 0).shape))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size along the dim times the copies."""
        x, dim = tensor(call, 0), self._dim(call)
        copies = integer(call, "repeats")
        return (Spec(x.dtype, with_size(x.shape, dim, x.shape[dim] * copies)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim, in units of the input's."""
        return tuple(
            Split(name=name_of(dim), role=role_of(dim), extent=size, inputs=(dim,), outputs=(dim,))
            for dim, size in enumerate(tensor(call, 0).shape)
        )


@final
class Pad(Family):
    """constant_pad_nd, reflection_pad1d ...: before and after each dim, for the last dim first."""

    def __init__(self, key: str = "pad") -> None:
        self._told = key

    def _pads(self, call: Call) -> list[tuple[int, int]]:
        rank, pad = len(tensor(call, 0).shape), integers(call, self._told)
        pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
        return [(0, 0)] * (rank - len(pairs)) + pairs

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Each size with what is put around it."""
        x = tensor(call, 0)
        pairs = zip(x.shape, self._pads(call), strict=True)
        return (Spec(x.dtype, tuple(size + before + after for size, (before, after) in pairs)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Dims that are not padded."""
        pads = enumerate(self._pads(call))
        return tuple(along(dim, call, (dim,)) for dim, pad in pads if pad == (0, 0))


@final
class Windows(Family):
    """unfold: windows along a dim; their elements become the last dim."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As many windows as fit, and the size of one."""
        x = tensor(call, 0)
        dim, size = position(integer(call, "dimension"), len(x.shape)), integer(call, "size")
        count = (x.shape[dim] - size) // integer(call, "step") + 1 if x.shape else 1
        return (Spec(x.dtype, (*with_size(x.shape, dim, count)[: len(x.shape)], size)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other old dims."""
        rank = len(tensor(call, 0).shape)
        named_dim = position(integer(call, "dimension"), rank)
        return tuple(along(dim, call, (dim,)) for dim in range(rank) if dim != named_dim)


@final
class Diagonal(Family):
    """The diagonal of two dims, which becomes the last dim; diagonal_scatter writes one."""

    def __init__(self, *, view: bool) -> None:
        self.view = view

    def _pair(self, call: Call) -> tuple[int, int]:
        rank = len(tensor(call, 0).shape)
        dims = integer(call, "dim1", 0), integer(call, "dim2", 1)
        return position(dims[0], rank), position(dims[1], rank)

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x where one is written; else what is left, and the length of the diagonal."""
        x = tensor(call, 0)
        if not self.view:
            return (x,)
        one, other = self._pair(call)
        offset = integer(call, "offset", 0)
        rows, columns = x.shape[one] + min(offset, 0), x.shape[other] - max(offset, 0)
        left = (n for dim, n in enumerate(x.shape) if dim not in (one, other))
        return (Spec(x.dtype, (*left, max(min(rows, columns), 0))),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        pair = self._pair(call)
        left = [dim for dim in range(len(tensor(call, 0).shape)) if dim not in pair]
        if self.view:
            return tuple(along(out, call, (dim,)) for out, dim in enumerate(left))
        return tuple(along(dim, call, (dim, place)) for place, dim in enumerate(left))


@final
class SectionWritten(Family):
    """slice_scatter and select_scatter: x with a range, or one position, of a dim replaced."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x."""
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        rank = len(call.outputs[0].shape)
        named_dim = position(integer(call, "dim", 0), rank)
        gone = call.kind == "select_scatter"
        return tuple(
            along(dim, call, (dim, dim - (gone and dim > named_dim)))
            for dim in range(rank)
            if dim != named_dim
        )


KINDS: Mapping[str, Family] = {
    **{kind: SectionWritten() for kind in ("slice_scatter", "select_scatter")},
    "unfold": Windows(),
    "diagonal": Diagonal(view=True),
    "diagonal_scatter": Diagonal(view=False),
    "slice": Slice(),
    "narrow": Slice(),
    "select": Select(),
    **{kind: Cut() for kind in ("split", "split_with_sizes", "chunk", "unbind")},
    "cat": Concatenate(),
    "stack": Stack(),
    "expand": Expand(),
    "repeat": Repeat(),
    "repeat_interleave": RepeatInterleave(),
    "constant_pad_nd": Pad(),
    "pad": Pad(),
    **{f"reflection_pad{n}d": Pad("padding") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": Pad("padding") for n in (1, 2, 3)},
}
