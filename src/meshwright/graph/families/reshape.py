"""Reshapes: view, reshape, flatten, unflatten, squeeze, unsqueeze.

Both shapes are walked together and fall into groups of dims with the same number of elements. Of a
group only the outermost dims can be cut, in as many units as both sizes have in common: a cut
there is a cut of consecutive memory on either side. Inner dims of a group stay whole.

A capture that knows strides records what copies nothing as "view" and what copies as "reshape".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import final

from meshwright.graph.family import (
    Family,
    ShapeError,
    Split,
    integer,
    integers,
    name_of,
    position,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


def common_cuts(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Dims of two shapes that can be cut together, with the number of units.

    >>> list(common_cuts((6, 4, 10), (24, 2, 5)))
    [(0, 0, 6), (2, 1, 2)]
    """
    i = j = 0
    while i < len(before) and j < len(after):
        if before[i] == 1:
            i += 1
            continue
        if after[j] == 1:
            j += 1
            continue
        outer = (i, j)
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        yield *outer, math.gcd(before[outer[0]], after[outer[1]])


def resolved(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """A shape with its one -1 worked out.

    >>> resolved((-1, 4), 12)
    (3, 4)
    """
    if -1 in shape:
        known = -math.prod(shape)
        if known == 0 or elements % known:
            raise ShapeError(f"{elements} elements do not make a shape {shape}")
        shape = tuple(elements // known if size == -1 else size for size in shape)
    if math.prod(shape) != elements:
        raise ShapeError(f"{elements} elements do not make a shape {shape}")
    return shape


@final
class Reshape(Family):
    """`target` names the attribute that holds the new shape."""

    def __init__(self, target: str, *, view: bool) -> None:
        self._target = target
        self.view = view

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The shape asked for."""
        x = tensor(call, 0)
        return (Spec(x.dtype, resolved(integers(call, self._target), x.elements)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The outermost dim of each group."""
        return reshape_splits(call)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The shape of the piece."""
        dim, shape = split.outputs[0], list(call.outputs[0].shape)
        if dim is not None:
            shape[dim] = shape[dim] // split.extent * (stop - start)
        return replaced(call.attributes, **{self._target: tuple(shape)})


@final
class Flatten(Family):
    """Dims start_dim to end_dim become one."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The dims between multiply."""
        x = tensor(call, 0)
        rank = len(x.shape)
        first = position(integer(call, "start_dim", 0), rank)
        last = position(integer(call, "end_dim", -1), rank)
        middle = math.prod(x.shape[first : last + 1])
        return (Spec(x.dtype, (*x.shape[:first], middle, *x.shape[last + 1 :])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The outermost dim of each group."""
        return reshape_splits(call)


@final
class Unflatten(Family):
    """One dim becomes several."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The dim in its factors."""
        x = tensor(call, 0)
        dim = position(integer(call, "dim"), len(x.shape))
        factors = resolved(integers(call, "sizes"), x.shape[dim])
        return (Spec(x.dtype, (*x.shape[:dim], *factors, *x.shape[dim + 1 :])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The outermost dim of each group."""
        return reshape_splits(call)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The factors of the piece."""
        dim = position(integer(call, "dim"), len(tensor(call, 0).shape))
        shape = list(call.outputs[0].shape)
        if split.outputs[0] is not None:
            shape[split.outputs[0]] = shape[split.outputs[0]] // split.extent * (stop - start)
        count = len(integers(call, "sizes"))
        return replaced(call.attributes, sizes=tuple(shape[dim : dim + count]))


@final
class Squeeze(Family):
    """Dims of size 1 go away: those named, or all of them."""

    view = True

    def _gone(self, call: Call) -> tuple[int, ...]:
        x = tensor(call, 0).shape
        named = call.get("dim")
        dims = range(len(x)) if named is None else integers(call, "dim")
        positions = {position(dim, len(x)) for dim in dims}
        return tuple(sorted(dim for dim in positions if x and x[dim] == 1))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """What is left."""
        x, gone = tensor(call, 0), self._gone(call)
        return (Spec(x.dtype, tuple(n for dim, n in enumerate(x.shape) if dim not in gone)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All that is left."""
        return reshape_splits(call)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """Only what the whole loses: a dim that was cut to 1 stays."""
        return replaced(call.attributes, dim=self._gone(call))


@final
class Unsqueeze(Family):
    """A new dim of size 1."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One more dim."""
        x = tensor(call, 0)
        dim = position(integer(call, "dim"), len(x.shape) + 1)
        return (Spec(x.dtype, (*x.shape[:dim], 1, *x.shape[dim:])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All old dims."""
        return reshape_splits(call)


def reshape_splits(call: Call) -> tuple[Split, ...]:
    """The outermost dim of each group."""
    before, after = tensor(call, 0).shape, call.outputs[0].shape
    if 0 in before:
        return ()
    return tuple(
        Split(name=name_of(out), role=role_of(out), extent=units, inputs=(dim,), outputs=(out,))
        for dim, out, units in common_cuts(before, after)
    )


KINDS: Mapping[str, Family] = {
    "view": Reshape("size", view=True),
    "_unsafe_view": Reshape("size", view=True),
    "reshape": Reshape("shape", view=False),
    "flatten": Flatten(),
    "unflatten": Unflatten(),
    "squeeze": Squeeze(),
    "unsqueeze": Unsqueeze(),
}
