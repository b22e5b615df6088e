"""Batched linear algebra (linalg_inv, linalg_svd ...), cross products and pairwise distances.

A signature names the last dims of operands and results, "nn,nr->nr"; all dims before them are
batches, which may be cut, as may r, the right-hand sides of equations. A number of flops stands
beside each: a coefficient times the product of all named sizes, k being the lesser of m and n
where no operand names it (Golub and Van Loan).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.families.elementwise import promoted
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    along,
    integer,
    position,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec

SIDES = "r"


@final
class Batched(Family):
    """The same function of every matrix of a batch."""

    def __init__(self, signature: str, flops: int, *, codes: bool = False) -> None:
        left, _, right = signature.partition("->")
        self._operands, self._results = left.split(","), right.split(",")
        self._flops, self._codes = flops, codes
        """Whether the last result is a code of LAPACK's for each matrix, a whole number."""

    def _taken(self, call: Call) -> tuple[tuple[int, ...], dict[str, int]]:
        """The shape of the batch, and the size of each letter."""
        sizes: dict[str, int] = {}
        batches = []
        for place, letters in enumerate(self._operands):
            shape = tensor(call, place).shape
            rank = len(shape) - len(letters)
            if rank < 0 or len(call.inputs) != len(self._operands):
                raise ShapeError(f"operand {place} is {shape}, not a matrix {letters!r}")
            for letter, size in zip(letters, shape[rank:], strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ShapeError(f"{letter!r} is both {sizes[letter]} and {size}")
            batches.append(shape[:rank])
        sizes.setdefault("k", min(sizes.get("m", 1), sizes.get("n", sizes.get("m", 1))))
        return broadcast(*batches), sizes

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The batch, and the named dims of each result."""
        batch, sizes = self._taken(call)
        dtype = tensor(call, 0).dtype
        if dtype.startswith("complex"):
            raise ShapeError("only real matrices are told about")
        shapes = [(*batch, *(sizes[letter] for letter in letters)) for letters in self._results]
        codes = (Spec("int32", batch),) if self._codes else ()
        return (*(Spec(dtype, shape) for shape in shapes), *codes)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The batch dims."""
        batch, _ = self._taken(call)
        named = list(zip(call.inputs, self._operands, strict=True))
        fronts = [spec.shape[: len(spec.shape) - len(labels)] for spec, labels in named if spec]
        batches = (
            along(dim, call, tuple(stretched(front, dim, len(batch)) for front in fronts))
            for dim in range(len(batch))
        )
        return (*batches, *self._sides(call))

    def _sides(self, call: Call) -> tuple[Split, ...]:
        """The right-hand sides, each solved by itself."""
        if SIDES not in self._results[0]:
            return ()
        last = tuple(
            len(tensor(call, place).shape) - 1 if SIDES in labels else None
            for place, labels in enumerate(self._operands)
        )
        out = len(call.outputs[0].shape) - 1
        extent = call.outputs[0].shape[out]
        return (Split(name="side", role="attribute", extent=extent, inputs=last, outputs=(out,)),)

    def flops(self, call: Call) -> int:
        """So many for each matrix."""
        batch, sizes = self._taken(call)
        named = [sizes[letter] for letters in self._operands for letter in letters]
        return self._flops * math.prod(batch) * math.prod(sorted(named)[-3:]) * _least(named)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """What came in and what came out."""
        return Saved(inputs=tuple(range(len(call.inputs))), outputs=tuple(range(len(call.outputs))))


def _least(sizes: list[int]) -> int:
    """A matrix of m by n takes m n min(m, n); three sizes are all there is to multiply."""
    return min(sizes) if len(sizes) < 3 else 1


@final
class Distances(Family):
    """cdist: the distance of every row of a from every row of b."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Batches, rows of a, rows of b."""
        a, b = tensor(call, 0), tensor(call, 1)
        if min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-1]:
            raise ShapeError(f"vectors are {a.shape} and {b.shape}")
        batch = broadcast(a.shape[:-2], b.shape[:-2])
        return (Spec(promoted((a, b)), (*batch, a.shape[-2], b.shape[-2])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Batches and rows; vectors whose distance is a sum also along them."""
        a, b = tensor(call, 0).shape, tensor(call, 1).shape
        rank = len(call.outputs[0].shape)
        splits = [
            along(dim, call, (stretched(a[:-2], dim, rank - 2), stretched(b[:-2], dim, rank - 2)))
            for dim in range(rank - 2)
        ]
        splits.append(along(rank - 2, call, (len(a) - 2, None)))
        splits.append(along(rank - 1, call, (None, len(b) - 2)))
        if call.get("p", 2.0) == 1:
            inner = (len(a) - 1, len(b) - 1)
            splits.append(
                Split(name="inner", role="reduction", extent=a[-1], inputs=inner, outputs=(None,))
            )
        return tuple(splits)

    def flops(self, call: Call) -> int:
        """A difference, a power and a sum for each pair of elements."""
        return 3 * call.outputs[0].elements * tensor(call, 0).shape[-1]

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The vectors and their distances."""
        return Saved(inputs=(0, 1), outputs=(0,))


@final
class Vectors(Family):
    """Two vectors along a dim: linalg_cross keeps the dim, cosine_similarity sums over it."""

    def __init__(self, *, dim: int, keeps: bool) -> None:
        self._dim, self._keeps = dim, keeps

    def _shape(self, call: Call) -> tuple[tuple[int, ...], int]:
        shape = broadcast(tensor(call, 0).shape, tensor(call, 1).shape)
        return shape, position(integer(call, "dim", self._dim), len(shape))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The shape that both stretch to, with or without the dim."""
        shape, dim = self._shape(call)
        kept = shape if self._keeps else shape[:dim] + shape[dim + 1 :]
        return (Spec(promoted((tensor(call, 0), tensor(call, 1))), kept),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        shape, vector_dim = self._shape(call)
        operands = [tensor(call, 0).shape, tensor(call, 1).shape]
        splits = []
        for dim in range(len(shape)):
            if dim != vector_dim:
                out = dim if self._keeps or dim < vector_dim else dim - 1
                cut = tuple(stretched(operand, dim, len(shape)) for operand in operands)
                splits.append(along(out, call, cut))
        return tuple(splits)

    def flops(self, call: Call) -> int:
        """Three products and sums for each element."""
        return 6 * math.prod(self._shape(call)[0])

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Both vectors."""
        return Saved(inputs=(0, 1))


KINDS: Mapping[str, Family] = {
    "linalg_inv": Batched("nn->nn", 2),
    "linalg_inv_ex": Batched("nn->nn", 2, codes=True),
    "linalg_det": Batched("nn->", 1),
    "linalg_slogdet": Batched("nn->,", 1),
    "logdet": Batched("nn->", 1),
    "linalg_cholesky": Batched("nn->nn", 1),
    "linalg_cholesky_ex": Batched("nn->nn", 1, codes=True),
    "linalg_eigh": Batched("nn->n,nn", 9),
    "linalg_eigvalsh": Batched("nn->n", 2),
    "linalg_svdvals": Batched("mn->k", 4),
    "linalg_svd": Batched("mn->mm,k,nn", 14),
    "linalg_qr": Batched("mn->mk,kn", 4),
    "linalg_matrix_exp": Batched("nn->nn", 20),
    "linalg_matrix_power": Batched("nn->nn", 4),
    "linalg_pinv": Batched("mn->nm", 14),
    "linalg_solve": Batched("nn,nr->nr", 2),
    "linalg_solve_triangular": Batched("nn,nr->nr", 1),
    "cholesky_solve": Batched("nr,nn->nr", 2),
    "cdist": Distances(),
    "linalg_cross": Vectors(dim=-1, keeps=True),
    "cosine_similarity": Vectors(dim=1, keeps=False),
}
