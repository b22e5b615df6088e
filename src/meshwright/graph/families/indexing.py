"""Gather, scatter and advanced indexing; searchsorted and bucketize; masked_scatter.

What is looked up may be cut along the indices, what is looked up in along all dims but the one
that the indices address. Additions into a tensor are a reduction over what is added; the tensor
itself goes to one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.families.sections import with_size
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    along,
    integer,
    name_of,
    position,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec


@final
class Gather(Family):
    """out[i][j] = x[i][index[i][j]], along one dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the index."""
        x, index = tensor(call, 0), tensor(call, 1)
        if len(x.shape) != len(index.shape):
            raise ShapeError(f"x is {x.shape} and the index {index.shape}")
        return (Spec(x.dtype, index.shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Along the dim the index alone; along others both, where they are equally long."""
        x, index = tensor(call, 0).shape, tensor(call, 1).shape
        named_dim = position(integer(call, "dim"), len(x))
        return tuple(
            along(dim, call, (None if dim == named_dim else dim, dim))
            for dim in range(len(x))
            if dim == named_dim or x[dim] == index[dim]
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The index."""
        return Saved(inputs=(1,))


@final
class IndexSelect(Family):
    """out[i] = x[index[i]], along one dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One slice for each index."""
        x, index = tensor(call, 0), tensor(call, 1)
        dim = position(integer(call, "dim"), len(x.shape))
        return (Spec(x.dtype, with_size(x.shape, dim, index.elements)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Along the dim the index, along others x."""
        rank = len(tensor(call, 0).shape)
        named_dim = position(integer(call, "dim"), rank)
        return tuple(
            along(dim, call, (None, 0) if dim == named_dim else (dim, None)) for dim in range(rank)
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The index."""
        return Saved(inputs=(1,))


@final
class Scatter(Family):
    """x with src written (or added) at the index, along one dim; src may be a number."""

    def __init__(self, *, adds: bool = False) -> None:
        self._adds = adds

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x."""
        if len(tensor(call, 0).shape) != len(tensor(call, 1).shape):
            raise ShapeError(f"x is {tensor(call, 0).shape}, the index {tensor(call, 1).shape}")
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Other dims where all are equally long; what is added."""
        shapes = [spec.shape for spec in call.inputs if spec is not None]
        rank, count = len(call.outputs[0].shape), len(call.inputs)
        named_dim = position(integer(call, "dim"), rank)
        others = tuple(
            along(dim, call, (dim,) * count)
            for dim in range(rank)
            if dim != named_dim and len({shape[dim] for shape in shapes}) == 1
        )
        index = tensor(call, 1).shape
        if not self._adds or index != shapes[-1] or not index:
            return others
        added = Split(
            name="added",
            role="reduction",
            extent=index[named_dim],
            inputs=(None, named_dim, named_dim),
            outputs=(None,),
            once=(0,),
        )
        return (*others, added)

    def flops(self, call: Call) -> int:
        """One for each element added."""
        return tensor(call, 1).elements if self._adds else 0

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The index."""
        return Saved(inputs=(1,))


@final
class IndexAdd(Family):
    """x with the slices of src added at the index, along one dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x."""
        x, index, src = (tensor(call, i) for i in range(3))
        dim = position(integer(call, "dim"), len(x.shape))
        if src.shape != with_size(x.shape, dim, index.elements):
            raise ShapeError(f"x is {x.shape}, the index {index.shape}, src {src.shape}")
        return (x,)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Other dims; what is added."""
        rank = len(call.outputs[0].shape)
        named_dim = position(integer(call, "dim"), rank)
        added = Split(
            name="added",
            role="reduction",
            extent=tensor(call, 1).elements,
            inputs=(None, 0, named_dim),
            outputs=(None,),
            once=(0,),
        )
        others = (along(dim, call, (dim, None, dim)) for dim in range(rank) if dim != named_dim)
        return (*others, added)

    def flops(self, call: Call) -> int:
        """One for each element added."""
        return tensor(call, 2).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The index."""
        return Saved(inputs=(1,))


def advanced_index_layout(
    x: Spec, indices: tuple[Spec | None, ...]
) -> tuple[tuple[int, ...], int, list[int]]:
    """What x[i, j, ...] looks like, i and j being tensors of positions or None.

    The shape of the positions, where it stands among the other dims (in place of the dims indexed;
    in front if these lie apart), and the dims of x that are not indexed.
    """
    indexed = [dim for dim, spec in enumerate(indices) if spec is not None]
    if not indexed or len(indices) > len(x.shape):
        raise ShapeError(f"x is {x.shape}, and {len(indices)} dims are indexed")
    shape = broadcast(*(spec.shape for spec in indices if spec is not None))
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    kept = [dim for dim in range(len(x.shape)) if dim not in indexed]
    return shape, indexed[0] if together else 0, kept


@final
class Index(Family):
    """x[i, j, ...]: the first dims of x, or those that are not None, by tensors of positions."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The positions' shape in place of the dims indexed; in front if they lie apart."""
        x = tensor(call, 0)
        shape, at, kept = advanced_index_layout(tensor(call, 0), call.inputs[1:])
        sizes = [x.shape[dim] for dim in kept]
        return (Spec(x.dtype, (*sizes[:at], *shape, *sizes[at:])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Positions, and the dims of x that are not indexed."""
        shape, at, kept = advanced_index_layout(tensor(call, 0), call.inputs[1:])
        indices = call.inputs[1:]
        splits = []
        for out in range(len(call.outputs[0].shape)):
            index_dim = out - at
            if 0 <= index_dim < len(shape):
                cuts = tuple(
                    None if spec is None else stretched(spec.shape, index_dim, len(shape))
                    for spec in indices
                )
                splits.append(along(out, call, (None, *cuts)))
            else:
                dim = kept[out if index_dim < 0 else out - len(shape)]
                splits.append(along(out, call, (dim, *(None,) * len(indices))))
        return tuple(splits)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The positions."""
        return Saved(inputs=tuple(range(1, len(call.inputs))))


@final
class IndexPut(Family):
    """x[i, j, ...] = values, or += values if `accumulate`; the values come last."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x."""
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims of x that are not indexed; none under a mask, which spans several."""
        x, indices, values = tensor(call, 0), call.inputs[1:-1], tensor(call, -1)
        if any(spec is not None and spec.dtype == "bool" for spec in indices):
            return ()
        shape, at, kept = advanced_index_layout(x, indices)
        whole = (None,) * len(indices)
        rank = len(shape) + len(kept)
        places = ((dim, i if i < at else i + len(shape)) for i, dim in enumerate(kept))
        return tuple(
            along(dim, call, (dim, *whole, stretched(values.shape, place, rank)))
            for dim, place in places
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The positions."""
        return Saved(inputs=tuple(range(1, len(call.inputs) - 1)))


@final
class IndexWritten(Family):
    """index_copy, index_fill: x with slices at the index replaced, by those of src or a number."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As x."""
        position(integer(call, "dim"), len(tensor(call, 0).shape))
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims; a src without dims is a number."""
        rank = len(call.outputs[0].shape)
        named_dim = position(integer(call, "dim"), rank)
        with_dims = [spec is not None and bool(spec.shape) for spec in call.inputs[2:]]
        return tuple(
            along(dim, call, (dim, None, *(dim if own_dims else None for own_dims in with_dims)))
            for dim in range(rank)
            if dim != named_dim
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The index."""
        return Saved(inputs=(1,))


@final
class Search(Family):
    """Where values belong among sorted boundaries: searchsorted(boundaries, values) and
    bucketize(values, boundaries); boundaries of several dims are rows, one for each of the values'.
    """

    differentiable = False

    def __init__(self, *, values: int) -> None:
        self._values = values

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A place for each value."""
        dtype = "int32" if call.get("out_int32", False) else "int64"
        return (Spec(dtype, tensor(call, self._values).shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims of the values; with rows of boundaries the last is cut in the values alone."""
        rank = len(call.outputs[0].shape)
        rows = len(tensor(call, 1 - self._values).shape) - 1
        splits = []
        for dim in range(rank):
            cuts: list[int | None] = [dim if dim < rows else None] * len(call.inputs)
            cuts[self._values] = dim
            splits.append(along(dim, call, tuple(cuts)))
        return (*splits, self._boundaries(call))

    def _boundaries(self, call: Call) -> Split:
        """A place is how many boundaries lie before it, so that parts of them add up."""
        sorted_ = tensor(call, 1 - self._values).shape
        cuts: list[int | None] = [len(sorted_) - 1] * len(call.inputs)
        cuts[self._values] = None
        return Split(
            name="boundary",
            role="reduction",
            extent=sorted_[-1],
            inputs=tuple(cuts),
            outputs=(None,),
        )

    def flops(self, call: Call) -> int:
        """A comparison at each step of a search by halves."""
        boundaries = tensor(call, 1 - self._values).shape
        steps = max(boundaries[-1], 1).bit_length() if boundaries else 1
        return steps * call.outputs[0].elements


@final
class MaskedScatter(Family):
    """x with the elements under a mask replaced by the next ones of src: which ones depends on all
    of the mask before them, so nothing can be cut.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The shape that x and mask stretch to."""
        x = tensor(call, 0)
        return (Spec(x.dtype, broadcast(x.shape, tensor(call, 1).shape)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None."""
        return ()

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The mask."""
        return Saved(inputs=(1,))


@final
class Take(Family):
    """take: elements of x as one row, by their places."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the places."""
        return (Spec(tensor(call, 0).dtype, tensor(call, 1).shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim of the places."""
        return tuple(along(dim, call, (None, dim)) for dim in range(len(tensor(call, 1).shape)))

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The places."""
        return Saved(inputs=(1,))


@final
class OneHot(Family):
    """A row of zeros with a one, for each class; the classes stay whole."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One more dim, of classes."""
        x, classes = tensor(call, 0), integer(call, "num_classes", -1)
        if classes < 1:
            raise ShapeError("num_classes is not given, so the shape depends on the data")
        return (Spec("int64", (*x.shape, classes)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All dims of the input."""
        return tuple(
            Split(name=name_of(dim), role=role_of(dim), extent=size, inputs=(dim,), outputs=(dim,))
            for dim, size in enumerate(tensor(call, 0).shape)
        )


KINDS: Mapping[str, Family] = {
    "gather": Gather(),
    "index_select": IndexSelect(),
    "scatter": Scatter(),
    "scatter_add": Scatter(adds=True),
    "scatter_reduce": Scatter(),
    "index_add": IndexAdd(),
    "index_copy": IndexWritten(),
    "index_fill": IndexWritten(),
    "masked_scatter": MaskedScatter(),
    "searchsorted": Search(values=1),
    "bucketize": Search(values=0),
    "take": Take(),
    "index": Index(),
    "index_put": IndexPut(),
    "one_hot": OneHot(),
}
