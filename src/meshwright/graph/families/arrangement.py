"""Permutations of dims and elements: permute, transpose, t, flip, roll.

Dims move, so a cut of an output dim is a cut of the input dim it came from. Dims along which
elements change places (flip, roll) stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.family import Family, Split, along, integer, integers, position, tensor
from meshwright.graph.operator_graph import Call, Spec


@final
class Permute(Family):
    """Output dim i is input dim order(i)."""

    view = True

    def _order(self, call: Call) -> list[int]:
        rank = len(tensor(call, 0).shape)
        match call.kind:
            case "permute":
                return [position(dim, rank) for dim in integers(call, "dims")]
            case "t":
                pair = (0, rank - 1)
            case _:
                pair = position(integer(call, "dim0"), rank), position(integer(call, "dim1"), rank)
        order = list(range(rank))
        if rank:
            order[pair[0]], order[pair[1]] = order[pair[1]], order[pair[0]]
        return order

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The sizes move with their dims."""
        x = tensor(call, 0)
        return (Spec(x.dtype, tuple(x.shape[dim] for dim in self._order(call))),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        return tuple(along(out, call, (dim,)) for out, dim in enumerate(self._order(call)))


@final
class Turn(Family):
    """flip and roll: elements change places along the dims named."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims not named; roll without dims moves everything."""
        rank = len(tensor(call, 0).shape)
        named = integers(call, "dims", ())
        moved = {position(dim, rank) for dim in named or range(rank)}
        return tuple(along(dim, call, (dim,)) for dim in range(rank) if dim not in moved)


KINDS: Mapping[str, Family] = {
    **{kind: Permute() for kind in ("permute", "transpose", "t")},
    **{kind: Turn() for kind in ("flip", "roll")},
}
