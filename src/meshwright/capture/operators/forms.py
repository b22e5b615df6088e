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
from meshwright.graph.operator_graph import Attributes, Value

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
    table, indices, offsets, weights = (*call.inputs, None)[:4]
    assert indices is not None
    assert offsets is not None
    matrix, matrix_of_weights = _matrix(indices), _matrix(weights)
    if matrix is None or (weights is not None and matrix_of_weights is None):
        return call
    if not isinstance(offsets.target, OpOverload) or kind_of_node(offsets) != "arange":
        return call
    steps = dict(described(offsets.target, offsets.args, offsets.kwargs, is_tensor).attributes)
    bags, size = matrix.meta["val"].shape
    if (steps.get("start", 0), steps.get("end"), steps.get("step", 1)) != (0, bags * size, size):
        return call
    weighted = () if matrix_of_weights is None else (None, matrix_of_weights)
    return Described(call.kind, (table, matrix, *weighted), call.attributes)


def _matrix(row: fx.Node | None) -> fx.Node | None:
    """The matrix of which a node is the elements, one after the other."""
    if row is None or kind_of_node(row) not in ("reshape", "view"):
        return None
    matrix = row.args[0]
    return matrix if isinstance(matrix, fx.Node) and matrix.meta["val"].dim() == 2 else None


def empty_form(call: Described[fx.Node]) -> Described[fx.Node]:
    """Memory that takes its dtype from a tensor, of whose values and samples it has nothing."""
    like = call.inputs[0]
    assert like is not None
    dtype = ("dtype", attribute(like.meta["val"].dtype))
    return Described("empty", (), tuple(sorted((dict([dtype]) | dict(call.attributes)).items())))


FORMS = {"embedding_bag": embedding_bag_form, "new_empty": empty_form}
"""By kind, the form of a call over nodes."""


def is_number(constant: object) -> TypeGuard[torch.Tensor]:
    """Whether a constant of a program is one number."""
    return isinstance(constant, torch.Tensor) and not constant.is_meta and constant.shape == ()


def scalar_tensor_attributes(constant: torch.Tensor) -> Attributes:
    """The attributes of the `scalar_tensor` that makes it."""
    return number_of(attribute(constant.dtype), attribute(constant.item()))


def number_of(dtype: Value, value: Value) -> Attributes:
    """The same of a number that is known."""
    return ("dtype", dtype), ("s", value)
