"""softmax and log_softmax: every dim may be cut but the one along which they sum to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.family import Family, Saved, Split, Wanted, along, integer, position, tensor
from meshwright.graph.model import Call, Spec

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
        """All other dims."""
        rank = len(tensor(call, 0).shape)
        normed = position(integer(call, "dim"), rank)
        return tuple(along(dim, call, (dim,)) for dim in range(rank) if dim != normed)

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The result."""
        return Saved(outputs=(0,))


KINDS: Mapping[str, Family] = {
    kind: Softmax() for kind in ("softmax", "log_softmax", "_softmax", "_log_softmax")
}
