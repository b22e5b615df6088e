"""Creation operators: full, zeros, ones, empty, arange, eye ... and their `new_` forms.

A constant may be cut along every dim; the others are cheap and stay whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.graph.families.elementwise import DEFAULT_REAL
from meshwright.graph.families.sections import with_size
from meshwright.graph.family import (
    Family,
    ShapeError,
    Split,
    along,
    integer,
    integers,
    replaced,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


@final
class Filled(Family):
    """One value everywhere, or random ones; a `new_` form takes its dtype from a tensor."""

    differentiable = False

    def __init__(self, dtype: str | None = None) -> None:
        self._default = dtype

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for."""
        like = call.inputs[0] if call.inputs else None
        value = call.get("fill_value")
        dtype = like.dtype if like is not None else self._default or _dtype_of(value)
        return (Spec(str(call.get("dtype") or dtype), integers(call, "size", ())),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        whole = (None,) * len(call.inputs)
        return tuple(along(dim, call, whole) for dim in range(len(call.outputs[0].shape)))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The size of the piece."""
        dim = split.outputs[0]
        if dim is None:
            return call.attributes
        return replaced(call.attributes, size=with_size(call.outputs[0].shape, dim, stop - start))


def _dtype_of(value: object) -> str:
    """The dtype of a constant; a real one where nothing is said."""
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else DEFAULT_REAL


@final
class Range(Family):
    """arange: from start to end by steps."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As many numbers as fit."""
        start, end, step = call.get("start", 0), call.get("end"), call.get("step", 1)
        numbers = [n for n in (start, end, step) if isinstance(n, int | float)]
        if len(numbers) != 3 or not numbers[2]:
            raise ShapeError(f"the range goes from {start!r} to {end!r} by {step!r}")
        whole = all(isinstance(n, int) for n in numbers)
        count = max(math.ceil((numbers[1] - numbers[0]) / numbers[2]), 0)
        return (Spec(str(call.get("dtype") or ("int64" if whole else DEFAULT_REAL)), (count,)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None."""
        return ()


@final
class FromNumbers(Family):
    """What numbers alone determine: eye, linspace, logspace, windows, indices of triangles."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """By the kind."""
        dtype, shape = DEFAULT_REAL, self._shape(call)
        if call.kind.endswith("_indices"):
            dtype = "int64"
        return (Spec(str(call.get("dtype") or dtype), shape),)

    def _shape(self, call: Call) -> tuple[int, ...]:
        match call.kind:
            case "eye":
                rows = integer(call, "n")
                return rows, integer(call, "m", rows)
            case "linspace" | "logspace":
                return (integer(call, "steps"),)
            case "tril_indices" | "triu_indices":
                return 2, _triangle(call)
            case _:
                return (integer(call, "window_length"),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None."""
        return ()


def _triangle(call: Call) -> int:
    """How many elements a matrix has on and below (or above) a diagonal."""
    rows, columns, offset = (integer(call, key, 0) for key in ("row", "col", "offset"))
    below = sum(min(max(row + offset + 1, 0), columns) for row in range(rows))
    if call.kind == "tril_indices":
        return below
    return rows * columns - sum(min(max(row + offset, 0), columns) for row in range(rows))


_TOLD = (
    "eye", "linspace", "logspace", "tril_indices", "triu_indices", "hann_window", "hamming_window",
    "bartlett_window", "blackman_window", "kaiser_window",
)  # fmt: skip
_FILLED = ("full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones", "new_empty")

KINDS: Mapping[str, Family] = {
    **{kind: Filled() for kind in _FILLED},
    "scalar_tensor": Filled(),
    "arange": Range(),
    **{kind: FromNumbers() for kind in _TOLD},
}
