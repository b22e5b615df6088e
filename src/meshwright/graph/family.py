"""Operator family interface: shapes, FLOPs, saved tensors and splits of an operator. Enters: a
`Call`. Leaves: shapes, counts, ways to split.

A `Split` is one way to cut an operator's work into parts: cut input i along its dim `inputs[i]`
(None: every part reads all of it), run the operator on the pieces, and concatenate the outputs
along `outputs[o]` or, if the role is reduction, sum them. What is in no split of an operator must
stay whole. Cuts are made at multiples of a unit: a dim of size n is cut as `extent` units of
n / extent elements, so that one split can cut 32 query heads together with 8 key heads.

A piece is itself a call, so splits can be applied one after the other. Where a piece has to know
where it lies it says so in attributes that ATen does not have:
    first        the first row of a table, query, target or expert that the piece is responsible for
    first_row    the first of the rows of a grouped product that the piece holds
    first_class  the first of the classes of which the piece has the scores, and
    classes      how many classes there are in all
    first_key    the first of the keys that the piece attends to, and
    keys         how many keys there are in all
    first_hidden the first of the hidden units of a recurrent layer that the piece computes
    edges        padding before and after, for each spatial dim; it replaces `padding`. Of a
                 transposed convolution what is cut off
    divisor      what a mean divides by, when the piece sees only part of what is averaged
Nothing here knows of devices or of how pieces are moved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import msgspec

from meshwright.base.quantities import Bytes
from meshwright.graph.operator_graph import Attributes, Call, Spec, Value

Role = Literal["sample", "attribute", "parameter", "reduction"]


Wanted = tuple[bool, ...]
"""For each input of an operator whether its gradient is wanted."""

DEFINITION, PYTHON_KERNEL = "definition", "python_kernel"
"""Attributes of a user's operator: its line of index notation, and the function that runs it, if
that is not the PyTorch operator of its kind."""


class Halo(msgspec.Struct, frozen=True, kw_only=True):
    """How a window slides along a dim: outputs next to a cut read inputs beyond it.

    >>> Halo(kernel=3, before=1, after=1).reads(0, 4, 8)
    (0, 5, 1, 0)
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    transposed: bool = False
    """Whether each input is spread over a window of outputs, of which `before` and `after` are cut
    off, instead of each output being summed over a window of inputs."""

    def reads(self, start: int, stop: int, size: int) -> tuple[int, int, int, int]:
        """What outputs start to stop read of an input of this size.

        The first and last + 1 of the input's elements, and the padding before and after them (what
        is cut off, if transposed). A piece may lie in the padding altogether and read nothing.
        """
        if self.transposed:
            return self._spreads(start, stop, size)
        first = start * self.stride - self.before
        last = (stop - 1) * self.stride - self.before + (self.kernel - 1) * self.dilation + 1
        length = last - first
        before, after = min(max(-first, 0), length), min(max(last - size, 0), length)
        begin = min(max(first, 0), size)
        return begin, begin + length - before - after, before, after

    def _spreads(self, start: int, stop: int, size: int) -> tuple[int, int, int, int]:
        """Input i is spread over the outputs i stride - before to that + the window.

        >>> Halo(kernel=4, stride=2, before=1, after=1, transposed=True).reads(4, 8, 8)
        (1, 5, 3, 3)
        """
        reach = (self.kernel - 1) * self.dilation
        begin = min(max(-(-(start + self.before - reach) // self.stride), 0), size)
        end = max(begin, min((stop - 1 + self.before) // self.stride + 1, size))
        cut_before = start + self.before - begin * self.stride
        extent = (end - begin - 1) * self.stride + reach + 1
        return begin, end, cut_before, extent - cut_before - (stop - start)

    def shared(self, extent: int, size: int) -> int:
        """Rows of the input that the outputs on both sides of a cut read.

        >>> Halo(kernel=3, before=1, after=1).shared(8, 8)
        2
        >>> Halo(kernel=4, stride=2, before=1, after=1, transposed=True).shared(16, 8)
        2
        """
        if not self.transposed:
            return max(0, (self.kernel - 1) * self.dilation + 1 - self.stride)
        half = extent // 2
        return max(0, self.reads(0, half, size)[1] - self.reads(half, extent, size)[0])


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One way to cut an operator's work into parts; see the head of this module."""

    name: str
    role: Role
    extent: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    once: tuple[int, ...] = ()
    """Inputs that only the first part adds, as the bias of a sum."""
    halo: Halo | None = None
    """How the first input is read, where its pieces overlap."""
    statistics: int = 0
    """Elements that the parts all-reduce among themselves before they can finish: means of a batch
    that is cut, maxima and sums of a softmax along the dim that is cut."""
    rounds: tuple[int, int] = (1, 1)
    """How many such all-reduces, one after the other, in the forward and the backward pass."""
    exchanged: int = 0
    """Elements that the parts send each other by two AllToAlls, and by two more in the backward
    pass: tokens on their way to experts and back."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What the forward pass keeps for the backward pass."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    extra: Bytes = Bytes(0)
    """Bytes that are neither: a dropout mask, the statistics of a normalisation."""


class Family(ABC):
    """All about one kind of operator, from its shapes alone."""

    products = False
    """Whether its flops are products, which matrix units run and flop counters count."""
    view = False
    """Whether the outputs are views of the first input, which cost no memory and no time."""
    differentiable = True
    """Whether gradients flow through it."""

    @abstractmethod
    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """What the inputs and attributes give; a `ShapeError` if they do not fit."""

    @abstractmethod
    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every way to cut the work; all other dims must stay whole."""

    def flops(self, call: Call) -> int:
        """Floating-point operations of the forward pass; by default none, as of a copy."""
        return 0

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """Operations for the gradient of each input; by default as many as the forward pass."""
        return (self.flops(call),) * len(call.inputs)

    def traffic(self, call: Call) -> Bytes:
        """Bytes that the forward pass reads and writes."""
        return Bytes(0) if self.view else call.bytes

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """What the gradients that are wanted, one flag for each input, need; by default nothing."""
        return Saved()

    def stages(self, call: Call, wanted: Wanted) -> tuple[tuple[Call, Wanted], ...]:
        """The calls that it runs one after the other, each with the gradients that it makes;
        nothing, the default, if it is one kernel.
        """
        return ()

    def scratch(self, call: Call) -> Bytes:
        """What the backward pass holds on its way, besides gradients; by default nothing."""
        return Bytes(0)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The attributes of the piece from unit start to unit stop; by default unchanged."""
        return call.attributes


class ShapeError(ValueError):
    """Inputs that a kind cannot take; `check` turns it into a sentence about the operator."""


def other_factors(wanted: Wanted, one: int, other: int) -> Saved:
    """What a product keeps: for the gradient of either factor the other."""
    kept = (factor for factor, across in ((one, other), (other, one)) if wanted[across])
    return Saved(inputs=tuple(sorted(kept)))


def tensor(call: Call, index: int) -> Spec:
    """An input that the kind requires."""
    spec = call.inputs[index] if index < len(call.inputs) else None
    if spec is None:
        raise ShapeError(f"input {index} is missing")
    return spec


def integer(call: Call, key: str, default: int | None = None) -> int:
    """An attribute that must be a whole number."""
    value = call.get(key, default)
    if not isinstance(value, int):
        raise ShapeError(f"{key} is {value!r}, not a whole number")
    return value


def integers(call: Call, key: str, default: tuple[int, ...] | int | None = None) -> tuple[int, ...]:
    """An attribute that must be a list of whole numbers; one number is a list of one."""
    value = call.get(key, default)
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, tuple):
        raise ShapeError(f"{key} is {value!r}, not a list of whole numbers")
    return value


def position(dim: int, rank: int) -> int:
    """A dim counted from the front.

    >>> position(-1, 4)
    3
    """
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise ShapeError(f"there is no dim {dim} among {rank}")
    return dim % rank if rank else 0


def role_of(dim: int) -> Role:
    """The role of a dim that no parameter shares: the first is the sample dim by convention."""
    return "sample" if dim == 0 else "attribute"


def name_of(dim: int) -> str:
    """What a split along a dim without a better name is called."""
    return "sample" if dim == 0 else f"dim{dim}"


def replaced(attributes: Attributes, **changes: Value) -> Attributes:
    """The attributes with some of them changed or added.

    >>> replaced((("dim", 1), ("keepdim", True)), dim=0)
    (('dim', 0), ('keepdim', True))
    """
    return tuple(sorted((dict(attributes) | changes).items()))


def along(output: int, call: Call, inputs: tuple[int | None, ...]) -> Split:
    """The split that cuts the first output along a dim, and each input along the dim named for it.

    Further outputs are cut along the same dim.
    """
    return Split(
        name=name_of(output),
        role=role_of(output),
        extent=call.outputs[0].shape[output],
        inputs=inputs,
        outputs=(output,) * len(call.outputs),
    )
