"""Gradient check of `autograd.Function`s: whether backward is the derivative of forward. Enters:
how it was called in a trace. Leaves: yes, no, or why it cannot be told.

A trace keeps what forward computes and loses backward, so that the derivative of forward's own
operators is what would train. Both are compared as in `torch.autograd.gradcheck`, in float64 on
random inputs, but exactly: against autograd through forward, for inputs and arriving gradients of
several magnitudes, since a backward may clip or scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.utils import _pytree as pytree

MOST_ELEMENTS = 1 << 22
"""Of all inputs; larger ones are compared in smaller sizes."""

SMALL = 8
"""Even sizes are halved down to this."""

MAGNITUDES = ((1.0, 1.0), (0.1, 1e-4), (10.0, 1e4), (1.0, 1e-8))
"""Of inputs, and of gradients that arrive."""


class EnteringTensor(NamedTuple):
    """A tensor argument without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class FunctionCall(NamedTuple):
    """A call of an `autograd.Function` as a trace saw it; tensors are `EnteringTensor`."""

    function: type[Function]
    arguments: tuple[object, ...]
    line: str


def described_call(
    function: type[Function], arguments: Sequence[object], line: str
) -> FunctionCall:
    """A call without the values of its tensors."""

    def described(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        return EnteringTensor(tuple(map(int, value.shape)), value.dtype)

    return FunctionCall(function, tuple(pytree.tree_map(described, list(arguments))), line)


def doubt(call: FunctionCall) -> str | None:
    """What is wrong with a function's backward, if anything."""
    trial = _tried(call)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            same = all(_same(trial, *scales) for scales in MAGNITUDES)
    except Exception as error:
        return f"cannot be compared with the derivative of its forward ({_first_line(error)})"
    return None if same else "is not the derivative of its forward"


def nondeterminism(call: FunctionCall) -> str | None:
    """Why what a function gives, forward or backward, does not follow from what enters, if so:
    copies of one that draws random numbers would differ from device to device.
    """
    trial = _tried(call)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            drawn = _mapped(trial, lambda tensor: _drawn(tensor, 1.0, tensor.dtype))
            one, other = (_results(trial.function, drawn, seed) for seed in (0, 1))
    except Exception as error:
        return f"cannot be run by itself ({_first_line(error)})"
    same = all(map(torch.equal, one, other))
    return None if same else "draws random numbers, others on each device"


def _results(function: type[Function], drawn: Sequence[object], seed: int) -> list[Tensor]:
    """What a function gives and its gradients, with numbers that are drawn from a seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        returned = function.apply(*_copied(drawn))  # type: ignore[no-untyped-call]
    results = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
    return [tensor.nan_to_num() for tensor in (*results, *_gradients(function.apply, drawn, 1.0))]


def _copied(drawn: Sequence[object]) -> list[Any]:
    """The same values, since forward may write into what it gets."""
    return [value.clone() if isinstance(value, Tensor) else value for value in drawn]


def _tried(call: FunctionCall) -> FunctionCall:
    """A call in a size that can be tried."""
    sizes = sum(math.prod(tensor.shape) for tensor in _entering(call))
    return call if sizes <= MOST_ELEMENTS else _smaller(call)


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else 'no message'}"


def _entering(call: FunctionCall) -> list[EnteringTensor]:
    leaves = pytree.tree_leaves(call.arguments, is_leaf=_is_entering)
    return [leaf for leaf in leaves if _is_entering(leaf)]


def _is_entering(value: object) -> bool:
    return isinstance(value, EnteringTensor)


def _mapped(call: FunctionCall, change: Callable[[EnteringTensor], object]) -> list[Any]:
    """The arguments with something in place of each tensor."""
    arguments: list[Any] = pytree.tree_map(
        lambda leaf: change(leaf) if isinstance(leaf, EnteringTensor) else leaf,
        list(call.arguments),
        is_leaf=_is_entering,
    )
    return arguments


def _smaller(call: FunctionCall) -> FunctionCall:
    def halved(size: int) -> int:
        while size > SMALL and size % 2 == 0:
            size //= 2
        return size

    def small(tensor: EnteringTensor) -> EnteringTensor:
        return tensor._replace(shape=tuple(map(halved, tensor.shape)))

    return call._replace(arguments=tuple(_mapped(call, small)))


def _same(call: FunctionCall, inputs: float, arriving: float) -> bool:
    """Whether both ways give the same gradients for one draw."""
    drawn = _mapped(call, lambda tensor: _drawn(tensor, inputs, torch.float64))
    theirs = _gradients(call.function.apply, drawn, arriving)
    ours = _gradients(differentiable_forward(call.function), drawn, arriving)
    return len(theirs) == len(ours) and all(
        torch.allclose(one, other, rtol=1e-6, atol=1e-9 * arriving, equal_nan=True)
        for one, other in zip(theirs, ours, strict=True)
    )


def _drawn(tensor: EnteringTensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Random values, those that are real or complex in the precision of a dtype."""
    if tensor.dtype.is_complex:
        return torch.randn(tensor.shape, dtype=dtype.to_complex()) * scale
    if tensor.dtype.is_floating_point:
        return torch.randn(tensor.shape, dtype=dtype) * scale
    return torch.randint(0, 2, tensor.shape).to(tensor.dtype)


def _gradients(
    function: Callable[..., object], drawn: Sequence[object], arriving: float
) -> list[Tensor]:
    """The gradients of all real inputs, zeros where there is none."""
    leaves = [
        leaf.detach().requires_grad_()
        for leaf in pytree.tree_leaves(drawn)
        if isinstance(leaf, Tensor) and _differentiable(leaf)
    ]
    fresh = iter(leaves)

    def entering(leaf: object) -> object:
        # A copy, since forward may write into what it gets.
        return next(fresh).clone() if isinstance(leaf, Tensor) and _differentiable(leaf) else leaf

    results = pytree.tree_leaves(function(*pytree.tree_map(entering, list(drawn))))
    outputs = [output for output in results if isinstance(output, Tensor) and output.requires_grad]
    if not outputs or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    draw = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(output.shape, dtype=output.dtype, generator=draw) * arriving
        for output in outputs
    ]
    return list(
        torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True, materialize_grads=True)
    )


def _differentiable(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


class _Context:
    """What forward is given to keep things in, where nothing is kept."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *tensors: object) -> None:
        """Nothing goes backward from here."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = (
        save_for_backward
    )


def differentiable_forward(
    function: type[Function], forward: Callable[..., object] | None = None
) -> Callable[..., object]:
    """Forward's own operators, through which autograd goes."""
    body = forward or function.forward
    if function.setup_context is not Function.setup_context:
        return body
    return lambda *arguments: body(_Context(len(arguments)), *arguments)
