"""Normalisation of core ATen operators to the form in which users call them. Knows no program.

Enters: a call of an operator that stands for several. Leaves: the one that families tell about.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload

from meshwright.capture.operators.aten import Described, attribute, described
from meshwright.capture.operators.nodes import is_tensor, kind_of_node
from meshwright.graph.model import Attributes, Value

FORWARD = ("stride", "padding", "dilation", "groups")
BACKWARD = (*FORWARD, "output_padding")


def convolution_form(
    inputs: tuple[str | None, ...], attributes: Attributes, spatial: int
) -> Described[str]:
    """A convolution, which is transposed or not, over so many spatial dims.

    >>> noted = (("groups", 1), ("output_padding", (0,)), ("padding", (1,)), ("transposed", False))
    >>> convolution_form(("x", "w"), noted, 1)
    Described(kind='conv1d', inputs=('x', 'w'), attributes=(('groups', 1), ('padding', (1,))))
    """
    transposed = bool(dict(attributes).get("transposed"))
    kept = BACKWARD if transposed else FORWARD
    kind = f"conv_transpose{spatial}d" if transposed else f"conv{spatial}d"
    return Described(
        kind, inputs, tuple(attribute for attribute in attributes if attribute[0] in kept)
    )


def embedding_bag_form(call: Described[fx.Node]) -> Described[fx.Node]:
    """Bags of one size as rows of a matrix, as the user gave them, without their offsets."""
    if len(call.inputs) != 3:
        return call
    table, indices, offsets = call.inputs
    assert indices is not None
    assert offsets is not None
    matrix = indices.args[0] if kind_of_node(indices) in ("reshape", "view") else None
    if not isinstance(matrix, fx.Node) or matrix.meta["val"].dim() != 2:
        return call
    if not isinstance(offsets.target, OpOverload) or kind_of_node(offsets) != "arange":
        return call
    steps = dict(described(offsets.target, offsets.args, offsets.kwargs, is_tensor).attributes)
    bags, size = matrix.meta["val"].shape
    if (steps.get("start", 0), steps.get("end"), steps.get("step", 1)) != (0, bags * size, size):
        return call
    return Described(call.kind, (table, matrix), call.attributes)


def is_number(constant: object) -> TypeGuard[torch.Tensor]:
    """Whether a constant of a program is one number."""
    return isinstance(constant, torch.Tensor) and not constant.is_meta and constant.shape == ()


def scalar_tensor_attributes(constant: torch.Tensor) -> Attributes:
    """The attributes of the `scalar_tensor` that makes it."""
    return number_of(attribute(constant.dtype), attribute(constant.item()))


def number_of(dtype: Value, value: Value) -> Attributes:
    """The same of a number that is known."""
    return ("dtype", dtype), ("s", value)
