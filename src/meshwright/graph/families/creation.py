"""Tensors from nothing: full, zeros, ones, empty, arange ... and their `new_` forms.

A constant may be cut along every dim; the others are cheap and stay whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.graph.families.elementwise import DEFAULT_REAL
from meshwright.graph.families.sections import with_size
from meshwright.graph.family import Family, ShapeError, Split, along, integers, replaced
from meshwright.graph.model import Attributes, Call, Spec


@final
class Filled(Family):
    """One value everywhere; a `new_` form takes its dtype from a tensor."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for."""
        like = call.inputs[0] if call.inputs else None
        value = call.get("fill_value")
        dtype = like.dtype if like is not None else _dtype_of(value)
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


_FILLED = ("full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones", "new_empty")

KINDS: Mapping[str, Family] = {
    **{kind: Filled() for kind in _FILLED},
    "scalar_tensor": Filled(),
    "arange": Range(),
}
