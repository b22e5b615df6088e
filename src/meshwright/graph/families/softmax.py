"""Softmax and log_softmax, also sharded along the normalised dim. Cut along the dim along which
they sum to one, parts all-reduce the maximum and the sum of each row; cut along any other they are
independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.family import (
    Family,
    Saved,
    Split,
    Wanted,
    along,
    integer,
    name_of,
    position,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec

_FLOPS_PER_ELEMENT = 5
"""Maximum, subtract, exponentiate, add, divide."""


@final
class Softmax(Family):
    """Normed exponentials along one dim."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input, perhaps in another dtype."""
        x = tensor(call, 0)
        position(integer(call, "dim"), len(x.shape))
        return (Spec(str(call.get("dtype") or x.dtype), x.shape),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All dims; the first only if rows do not run along it, as samples are told by it."""
        shape = tensor(call, 0).shape
        normed = position(integer(call, "dim"), len(shape))
        others = [along(dim, call, (dim,)) for dim in range(len(shape)) if dim != normed]
        if not normed:
            return tuple(others)
        return (*others, self._rows(call, shape, normed))

    def _rows(self, call: Call, shape: tuple[int, ...], normed: int) -> Split:
        """Maxima and sums there, sums back."""
        return Split(
            name=name_of(normed),
            role="attribute",
            extent=shape[normed],
            inputs=(normed,),
            outputs=(normed,),
            statistics=tensor(call, 0).elements // max(1, shape[normed]),
            rounds=(2, 1),
        )

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The result."""
        return Saved(outputs=(0,))


KINDS: Mapping[str, Family] = {
    kind: Softmax() for kind in ("softmax", "log_softmax", "_softmax", "_log_softmax")
}
