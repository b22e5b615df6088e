"""Reductions over dims (sum, amax ...), scans (cumsum, diff), orders (topk, sort) and histograms.

The dims that stay may be cut. A sum may also be cut along what it adds up, and so may a mean whose
pieces know what to divide by; of the others (maxima, products, norms) those dims stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, final

from meshwright.graph.families.elementwise import DEFAULT_REAL
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
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

Result = Literal["same", "sum", "bool", "int64"]
"""Which dtype comes out: the input's, its widest whole or real one, bool, int64."""


WITH_INDEX = ("max", "min", "median", "nanmedian", "mode", "kthvalue")
"""Kinds that tell, along one dim, also where their result was."""
PAIRS = ("var_mean", "std_mean", "aminmax")
"""Kinds with two results."""
LAST = ("mode", "kthvalue")
"""Kinds that go along the last dim if none is named."""


def reduced_dims(call: Call) -> tuple[int, ...]:
    """The dims that go away, counted from the front; all of them if none is named."""
    rank = len(tensor(call, 0).shape)
    named = call.get("dim", -1 if call.kind in LAST else None)
    if named is None or named == ():
        return tuple(range(rank))
    dims = integers(call, "dim", -1)
    return tuple(sorted(position(dim, rank) for dim in dims))


@final
class DimReduction(Family):
    """One number for all elements along some dims."""

    def __init__(
        self,
        *,
        result: Result = "same",
        additive: bool = False,
        mean: bool = False,
        keeps: bool = False,
    ) -> None:
        self._result, self._additive, self._mean = result, additive or mean, mean
        self._keeps = keeps or not self._additive
        self.differentiable = result in ("same", "sum")

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The dims that stay; a maximum along one dim comes with its index."""
        x, gone = tensor(call, 0), reduced_dims(call)
        keep = bool(call.get("keepdim", False))
        shape = tuple(
            1 if dim in gone else size
            for dim, size in enumerate(x.shape)
            if keep or dim not in gone
        )
        values = Spec(self._dtype(call, x), shape)
        if call.kind in LAST or (call.kind in WITH_INDEX and call.get("dim") is not None):
            return values, Spec("int64", shape)
        return (values, values) if call.kind in PAIRS else (values,)

    def _dtype(self, call: Call, x: Spec) -> str:
        asked = call.get("dtype")
        if isinstance(asked, str):
            return asked
        whole = not x.dtype.startswith(("float", "bfloat", "complex"))
        match self._result:
            case "same":
                return DEFAULT_REAL if self._mean and whole else x.dtype
            case "sum":
                return "int64" if whole else x.dtype
            case other:
                return other

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims that stay, and what is added up."""
        x, gone = tensor(call, 0).shape, reduced_dims(call)
        keep = bool(call.get("keepdim", False))
        splits = []
        for dim, size in enumerate(x):
            if dim not in gone:
                out = dim if keep else dim - sum(1 for other in gone if other < dim)
                splits.append(
                    Split(
                        name=name_of(dim),
                        role=role_of(dim),
                        extent=size,
                        inputs=(dim,),
                        outputs=(out,) * len(call.outputs),
                    )
                )
            elif self._additive:
                splits.append(
                    Split(
                        name=name_of(dim),
                        role="reduction",
                        extent=size,
                        inputs=(dim,),
                        outputs=(None,),
                    )
                )
        return tuple(splits)

    def flops(self, call: Call) -> int:
        """One for each input element."""
        return tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of a sum nothing, of a maximum its index, of the others what came in and came out."""
        if not self._keeps:
            return Saved()
        if len(call.outputs) > 1 and call.kind in WITH_INDEX:
            return Saved(outputs=(1,))
        return Saved(inputs=(0,), outputs=tuple(range(len(call.outputs))))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """What the mean of the whole divides by."""
        if not self._mean or split.role != "reduction":
            return call.attributes
        x = tensor(call, 0).shape
        total = math.prod(x[dim] for dim in reduced_dims(call))
        return replaced(call.attributes, divisor=call.get("divisor", total))


@final
class Scan(Family):
    """Running totals, or largest elements with their places, along a dim, which stays whole."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input; whole numbers add up in int64."""
        x = tensor(call, 0)
        if call.kind in ("cummax", "cummin"):
            return x, Spec("int64", x.shape)
        real = x.dtype.startswith(("float", "bfloat", "complex"))
        return (Spec(str(call.get("dtype") or (x.dtype if real else "int64")), x.shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        return splits_of_other_dims(call)

    def flops(self, call: Call) -> int:
        """One for each element."""
        return tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of a sum nothing, of largest elements their places, else what came in and came out."""
        if len(call.outputs) > 1:
            return Saved(outputs=(1,))
        return Saved() if call.kind == "cumsum" else Saved(inputs=(0,), outputs=(0,))


@final
class Difference(Family):
    """diff: neighbours along a dim subtracted; what is put before and after may be given."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Shorter by one for each time that neighbours are subtracted."""
        x = tensor(call, 0)
        dim = position(integer(call, "dim", -1), len(x.shape))
        joined = sum(spec.shape[dim] for spec in call.inputs if spec is not None)
        size = max(joined - integer(call, "n", 1), 0)
        return (Spec(x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1 :])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        return splits_of_other_dims(call)

    def flops(self, call: Call) -> int:
        """One for each element."""
        return call.outputs[0].elements


@final
class Histogram(Family):
    """histc: how many elements fall into each bin."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A number for each bin."""
        return (Spec(tensor(call, 0).dtype, (integer(call, "bins", 100),)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim of the input, if the bins do not depend on its least and largest element."""
        if call.get("min", 0) == call.get("max", 0) == 0:
            return ()
        return tuple(
            Split(name=name_of(dim), role="reduction", extent=size, inputs=(dim,), outputs=(None,))
            for dim, size in enumerate(tensor(call, 0).shape)
        )

    def flops(self, call: Call) -> int:
        """One for each element."""
        return tensor(call, 0).elements


@final
class Order(Family):
    """topk and sort give values and indices along a dim, argsort only indices; the dim is whole."""

    def __init__(self, *, values: bool = True) -> None:
        self._values = values
        self.differentiable = values

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input, or its k largest."""
        x = tensor(call, 0)
        shape = list(x.shape)
        if call.kind == "topk" and shape:
            dim = position(integer(call, "dim", -1), len(shape))
            if integer(call, "k") > shape[dim]:
                raise ShapeError(f"the {call.get('k')} largest of {shape[dim]} are asked for")
            shape[dim] = integer(call, "k")
        indices = Spec("int64", tuple(shape))
        return (Spec(x.dtype, tuple(shape)), indices) if self._values else (indices,)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        return splits_of_other_dims(call)

    def flops(self, call: Call) -> int:
        """A comparison for each element at each of log n rounds."""
        x = tensor(call, 0)
        size = x.shape[position(integer(call, "dim", -1), len(x.shape))] if x.shape else 1
        return x.elements * max(size - 1, 1).bit_length()

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The indices."""
        return Saved(outputs=(1,)) if self._values else Saved()


def splits_of_other_dims(call: Call) -> tuple[Split, ...]:
    """Cuts along every dim but the one that the call names; a call names the last by default."""
    rank = len(tensor(call, 0).shape)
    named_dim = position(integer(call, "dim", -1), rank)
    count = len(call.inputs)
    return tuple(along(dim, call, (dim,) * count) for dim in range(rank) if dim != named_dim)


KINDS: Mapping[str, Family] = {
    "sum": DimReduction(result="sum", additive=True),
    "mean": DimReduction(mean=True),
    **{kind: DimReduction() for kind in ("amax", "amin", "max", "min", "logsumexp", "var", "std")},
    "prod": DimReduction(result="sum"),
    "linalg_vector_norm": DimReduction(),
    **{kind: DimReduction(result="bool") for kind in ("any", "all")},
    **{kind: DimReduction(result="int64") for kind in ("argmax", "argmin")},
    **{
        kind: DimReduction() for kind in ("norm", "nanmedian", "median", "mode", "kthvalue", *PAIRS)
    },
    "nansum": DimReduction(result="sum", additive=True, keeps=True),
    "count_nonzero": DimReduction(result="int64", additive=True),
    **{kind: Scan() for kind in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")},
    "diff": Difference(),
    "histc": Histogram(),
    "topk": Order(),
    "sort": Order(),
    "argsort": Order(values=False),
}
