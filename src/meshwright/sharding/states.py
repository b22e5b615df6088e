"""Placements of a tensor along a mesh factor, as numbers. Enters: a split of an operator. Leaves:
states, as numbers.

Along each factor of the machine a tensor is in one state: cut along a dim (the dim's number), whole
on every coordinate, a pending sum of what the coordinates hold, or present at one coordinate only.
An operator that is cut by a split makes its outputs in one state and needs its inputs in another;
for gradients the same holds the other way round. Numbers, so that compiled code can read them.
"""

from __future__ import annotations

from meshwright.graph.family import Split

WHOLE = -1
PARTIAL = -2
_AT_ZERO = -3

State = int
States = tuple[State, ...]
"""One for each factor."""


def at(coordinate: int) -> State:
    """Present at one coordinate only.

    >>> at(0), at(2), coordinate_of(at(2))
    (-3, -5, 2)
    """
    return _AT_ZERO - coordinate


def is_at(state: State) -> bool:
    """Whether a tensor is present at one coordinate only."""
    return state <= _AT_ZERO


def coordinate_of(state: State) -> int:
    """Where a tensor is present."""
    return _AT_ZERO - state


def made(split: Split, output: int) -> State:
    """How the parts of a split leave an output."""
    if split.role == "reduction":
        return PARTIAL
    dim = split.outputs[output]
    return WHOLE if dim is None else dim


def needed(split: Split, index: int) -> State:
    """How the parts of a split read an input."""
    dim = split.inputs[index]
    return WHOLE if dim is None else dim


def gradient_made(split: Split, index: int) -> State:
    """How the parts of a split leave the gradient of an input.

    What every part reads whole gets a part of its gradient from each; what only the first part
    adds, as the bias of a sum, gets all of it there, and just as well everywhere.
    """
    dim = split.inputs[index]
    if dim is not None:
        return dim
    return WHOLE if index in split.once else PARTIAL


def gradient_needed(state: State) -> State:
    """How an operator needs the gradient of an output that it leaves in a state."""
    return WHOLE if state == PARTIAL else state
