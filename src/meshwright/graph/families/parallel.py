"""Parallel operators: partition, combine, replicate, reduce, pipeline, batch, halo.

They say how a tensor lies in pieces, not what it holds; `meshwright.rewrite.language.types` tells
their laws. A graph records the sizes of the dims alone, without micro-batches, copies and sums.

    attributes                dims of the output
    axis, degree              partition, combine: as they came
                              replicate, reduce: a dim named as axis times, or by, the degree
    axis, count               pipeline: that dim by the count; batch: times the count
    axis, before, after       halo: as they came
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, final

from meshwright.graph.family import Family, ShapeError, Split, integer, position, tensor
from meshwright.graph.operator_graph import Call, Spec

FRONT_AXES = ("steps", "copies", "sums")
"""Axes that are no dims, which `axis` may name too."""

Effect = Literal["keeps", "multiplies", "divides"]


@final
class ParallelFamily(Family):
    """What becomes of the size of the dim that `axis` names, by a factor that `amount` names."""

    view = True

    def __init__(self, effect: Effect, amount: str = "degree", *, dims_only: bool = False) -> None:
        self._effect, self._amount, self._dims_only = effect, amount, dims_only

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The sizes of the dims after the operator."""
        x, axis, factor = tensor(call, 0), call.get("axis"), integer(call, self._amount)
        if factor < 1:
            raise ShapeError(f"{self._amount} is {factor}, not a positive number")
        if axis in FRONT_AXES and not self._dims_only:
            return (x,)
        dim = _dim(call)
        return (Spec(x.dtype, (*x.shape[:dim], self._size(x.shape[dim], factor),
                               *x.shape[dim + 1 :])),)  # fmt: skip

    def _size(self, size: int, factor: int) -> int:
        match self._effect:
            case "keeps":
                return size
            case "multiplies":
                return size * factor
            case "divides":
                if size % factor:
                    raise ShapeError(f"a dim of size {size} does not make {factor} equal parts")
                return size // factor

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None: how a tensor lies in pieces is told by its type."""
        return ()


@final
class Overlap(Family):
    """halo: every piece holds rows of its neighbours too, of which the sizes say nothing."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        _dim(call)
        if min(integer(call, "before"), integer(call, "after")) < 0:
            raise ShapeError("a piece holds less than no rows of its neighbours")
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None, as above."""
        return ()


def _dim(call: Call) -> int:
    rank = len(tensor(call, 0).shape)
    if not rank or isinstance(call.get("axis"), str):
        raise ShapeError(f"axis is {call.get('axis')!r}, not one of {rank} dims")
    return position(integer(call, "axis"), rank)


KINDS: Mapping[str, Family] = {
    "partition": ParallelFamily("keeps"),
    "combine": ParallelFamily("keeps"),
    "replicate": ParallelFamily("multiplies"),
    "reduce": ParallelFamily("divides"),
    "pipeline": ParallelFamily("divides", "count", dims_only=True),
    "batch": ParallelFamily("multiplies", "count", dims_only=True),
    "halo": Overlap(),
}
