"""Matrix products (GEMM): linear, linear_relu (ours), matmul, mm, bmm, addmm, _grouped_mm.

Each is out[..., m, n] = sum over k of a[..., m, k] b[..., k, n], perhaps with something added. With
p products of pairs of numbers, forward takes 2p flops and the gradient of either operand 2p.

    dim of the output   role        cuts
    batch dims, rows    sample (the first), attribute
    columns n           parameter   b along n (linear: weight and bias along their first dim)
    inner dim k         reduction   a and b along k; what is added goes to one part
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.family import (
    Family,
    Role,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    other_factors,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


@final
class Linear(Family):
    """out[..., n] = sum over k of x[..., k] weight[n, k], plus bias[n]; perhaps then relu."""

    products = True

    def __init__(self, *, relu: bool = False) -> None:
        self._relu = relu

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The last dim becomes the weight's first."""
        x, weight = tensor(call, 0), tensor(call, 1)
        if x.shape[-1:] != weight.shape[1:]:
            raise ShapeError(f"x is {x.shape} and weight {weight.shape}: the last dims differ")
        return (Spec(x.dtype, x.shape[:-1] + weight.shape[:1]),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim of the output and, as relu is not additive, without it the inner dim."""
        x, rest = tensor(call, 0), len(call.inputs) - 2
        last = len(x.shape) - 1
        rows = tuple(
            Split(
                name="sample" if dim == 0 else f"row{dim}",
                role=role_of(dim),
                extent=x.shape[dim],
                inputs=(dim, None, *(None,) * rest),
                outputs=(dim,),
            )
            for dim in range(last)
        )
        channel = Split(
            name="channel",
            role="parameter",
            extent=call.outputs[0].shape[-1],
            inputs=(None, 0, *(0,) * rest),
            outputs=(last,),
        )
        inner = Split(
            name="inner",
            role="reduction",
            extent=x.shape[-1],
            inputs=(last, 1, *(None,) * rest),
            outputs=(None,),
            once=(2,) * rest,
        )
        return (*rows, channel) if self._relu else (*rows, channel, inner)

    def flops(self, call: Call) -> int:
        """Two for each product of a pair."""
        return 2 * call.outputs[0].elements * tensor(call, 0).shape[-1]

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """One product each for x and weight; the bias is only added, which nobody counts."""
        return (self.flops(call), self.flops(call), 0)[: len(call.inputs)]

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of either factor's gradient the other factor; where relu is positive its result tells."""
        factors = other_factors(wanted, 0, 1)
        return Saved(inputs=factors.inputs, outputs=(0,)) if self._relu else factors


@final
class MatrixProduct(Family):
    """out = a b, batch dims broadcast; `added` says that a summand comes first, as in addmm."""

    products = True

    def __init__(self, *, added: bool = False, rank: int | None = None) -> None:
        self._first = 1 if added else 0
        self._rank = rank

    def _factors(self, call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of both factors, vectors as matrices of one row and of one column."""
        a, b = tensor(call, self._first).shape, tensor(call, self._first + 1).shape
        if self._rank is not None and not len(a) == len(b) == self._rank:
            raise ShapeError(f"factors {a} and {b} do not both have {self._rank} dims")
        if not a or not b:
            raise ShapeError("a factor has no dim")
        return (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Batch dims, rows of a, columns of b."""
        a, b = self._factors(call)
        if a[-1] != b[-2]:
            raise ShapeError(f"factors {a} and {b} differ in the inner dim")
        matrix = (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])
        vectors = [len(tensor(call, self._first + i).shape) == 1 for i in range(2)]
        rows = () if vectors[0] else matrix[-2:-1]
        columns = () if vectors[1] else matrix[-1:]
        return (Spec(tensor(call, self._first).dtype, (*matrix[:-2], *rows, *columns)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Batch dims, rows, columns and the inner dim."""
        a, b = tensor(call, self._first).shape, tensor(call, self._first + 1).shape
        out = call.outputs[0].shape
        rows = len(out) - (len(a) > 1) - (len(b) > 1)
        splits = []
        for dim in range(len(out)):
            role: Role = role_of(dim)
            name = "sample" if dim == 0 else f"batch{dim}"
            if dim < rows:
                cut = (
                    stretched(a[:-2], dim, rows),
                    stretched(b[:-2], dim, rows),
                )
            elif dim == rows and len(a) > 1:
                name, cut = "sample" if dim == 0 else "row", (len(a) - 2, None)
            else:
                name, role, cut = "channel", "parameter", (None, len(b) - 1)
            splits.append(self._split(call, name, role, out[dim], cut, dim))
        inner = (len(a) - 1, max(len(b) - 2, 0))
        return (*splits, self._split(call, "inner", "reduction", a[-1], inner, None))

    def _split(
        self,
        call: Call,
        name: str,
        role: Role,
        extent: int,
        cut: tuple[int | None, int | None],
        dim: int | None,
    ) -> Split:
        added: tuple[int | None, ...] = (None,) * self._first
        if self._first and dim is not None and (summand := call.inputs[0]) is not None:
            added = (stretched(summand.shape, dim, len(call.outputs[0].shape)),)
        return Split(
            name=name,
            role=role,
            extent=extent,
            inputs=(*added, *cut),
            outputs=(dim,),
            once=(0,) if self._first and dim is None else (),
        )

    def flops(self, call: Call) -> int:
        """Two for each product of a pair."""
        return 2 * call.outputs[0].elements * tensor(call, self._first).shape[-1]

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """One product for each factor; a summand is only added."""
        return (*(0,) * self._first, self.flops(call), self.flops(call))

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of either factor's gradient the other factor."""
        return other_factors(wanted, self._first, self._first + 1)


@final
class GroupedProduct(Family):
    """_grouped_mm: rows of a, sorted by expert, each group times its own matrix of b.

    a[t, k], b[experts, k, n] and the ends of the groups give out[t, n]. Where the groups end is
    data, so every piece reads all ends, which are few, and knows its first row or expert. A part
    of the experts gives zeros for the rows of the others.
    """

    products = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One row for each row of a."""
        a, b, ends = (tensor(call, i) for i in range(3))
        if len(a.shape) != 2 or len(b.shape) != 3 or a.shape[1] != b.shape[1]:
            raise ShapeError(f"a is {a.shape} and b {b.shape}, not (t, k) and (experts, k, n)")
        if ends.shape != b.shape[:1] and call.get("first") is None:
            raise ShapeError(f"the ends of the groups are {ends.shape}, not {b.shape[:1]}")
        return (Spec(a.dtype, (a.shape[0], b.shape[2])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Rows, columns, the inner dim and the experts."""
        rows, inner = tensor(call, 0).shape
        experts, _, columns = tensor(call, 1).shape
        return (
            Split(name="sample", role="sample", extent=rows, inputs=(0, None, None), outputs=(0,)),
            Split(
                name="channel",
                role="parameter",
                extent=columns,
                inputs=(None, 2, None),
                outputs=(1,),
            ),
            Split(
                name="inner", role="reduction", extent=inner, inputs=(1, 1, None), outputs=(None,)
            ),
            Split(
                name="expert",
                role="reduction",
                extent=experts,
                inputs=(None, 0, None),
                outputs=(None,),
            ),
        )

    def flops(self, call: Call) -> int:
        """Each row meets one matrix; a part of the experts has its share of the rows."""
        experts, total = tensor(call, 1).shape[0], tensor(call, 2).shape[0]
        return 2 * call.outputs[0].elements * tensor(call, 0).shape[1] * experts // total

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """As a plain product; the ends have no gradient."""
        return (self.flops(call), self.flops(call), 0)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """As a plain product, and the ends."""
        return Saved(inputs=(*other_factors(wanted, 0, 1).inputs, 2))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The first row or the first expert."""
        match split.name:
            case "sample":
                return replaced(call.attributes, first_row=integer(call, "first_row", 0) + start)
            case "expert":
                return replaced(call.attributes, first=integer(call, "first", 0) + start)
            case _:
                return call.attributes


KINDS: Mapping[str, Family] = {
    "linear": Linear(),
    "linear_relu": Linear(relu=True),
    "matmul": MatrixProduct(),
    "mm": MatrixProduct(rank=2),
    "bmm": MatrixProduct(rank=3),
    "addmm": MatrixProduct(added=True, rank=2),
    "baddbmm": MatrixProduct(added=True, rank=3),
    "_grouped_mm": GroupedProduct(),
}
