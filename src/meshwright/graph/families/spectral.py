"""Fourier transforms (FFT) of ATen; complex numbers as pairs (view_as_real, view_as_complex).

The pair, and every dim that is transformed, stays whole; all other dims may be cut. What users
call (`torch.fft.rfft`, `real` ...) a capture takes apart into these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, final

from meshwright.base.quantities import Bytes
from meshwright.graph.families.elementwise import COMPLEX, PARTS
from meshwright.graph.families.sections import with_size
from meshwright.graph.family import (
    Family,
    ShapeError,
    Split,
    along,
    integer,
    integers,
    position,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec

PAIR = 2


@final
class Pairs(Family):
    """view_as_real: one more dim, of two parts; view_as_complex: one less."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The same numbers in the other dtype."""
        x = tensor(call, 0)
        if call.kind == "view_as_real":
            if x.dtype not in PARTS:
                raise ShapeError(f"x is {x.dtype}, not complex")
            return (Spec(PARTS[x.dtype], (*x.shape, PAIR)),)
        if x.dtype not in COMPLEX or x.shape[-1:] != (PAIR,):
            raise ShapeError(f"x is {x.dtype} of shape {x.shape}, not pairs of real parts")
        return (Spec(COMPLEX[x.dtype], x.shape[:-1]),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim but the pair."""
        rank = min(len(tensor(call, 0).shape), len(call.outputs[0].shape))
        return tuple(along(dim, call, (dim,)) for dim in range(rank))


@final
class Fourier(Family):
    """_fft_c2c, _fft_r2c (perhaps onesided) and _fft_c2r, along the dims named."""

    def __init__(self, form: Literal["c2c", "r2c", "c2r"]) -> None:
        self._form = form

    def _dims(self, call: Call) -> tuple[int, ...]:
        rank = len(tensor(call, 0).shape)
        return tuple(position(dim, rank) for dim in integers(call, "dim"))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The last dim named is halved or doubled where the other side is real."""
        x, dims = tensor(call, 0), self._dims(call)
        match self._form:
            case "c2c":
                return (x,)
            case "r2c" if x.dtype in COMPLEX:
                size = x.shape[dims[-1]]
                kept = size // 2 + 1 if call.get("onesided", True) else size
                return (Spec(COMPLEX[x.dtype], with_size(x.shape, dims[-1], kept)),)
            case "c2r" if x.dtype in PARTS:
                size = integer(call, "last_dim_size")
                return (Spec(PARTS[x.dtype], with_size(x.shape, dims[-1], size)),)
            case _:
                raise ShapeError(f"{call.kind} does not take {x.dtype}")

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims that are not transformed."""
        whole = self._dims(call)
        rank = len(tensor(call, 0).shape)
        return tuple(along(dim, call, (dim,)) for dim in range(rank) if dim not in whole)

    def flops(self, call: Call) -> int:
        """5 n log n for complex numbers, half of it where one side is real (Cooley and Tukey)."""
        larger = max(tensor(call, 0).elements, call.outputs[0].elements)
        shape = call.outputs[0].shape if self._form == "c2r" else tensor(call, 0).shape
        points = math.prod(shape[dim] for dim in self._dims(call))
        return (5 if self._form == "c2c" else 3) * larger * max(points - 1, 1).bit_length()

    def traffic(self, call: Call) -> Bytes:
        """What is read and written, once for each dim: a pass along it."""
        return Bytes(call.bytes * len(self._dims(call)))


KINDS: Mapping[str, Family] = {
    "view_as_real": Pairs(),
    "view_as_complex": Pairs(),
    "_fft_c2c": Fourier("c2c"),
    "_fft_r2c": Fourier("r2c"),
    "_fft_c2r": Fourier("c2r"),
}
