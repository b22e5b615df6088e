"""Operators of core ATen in the form in which users call them. Knows no node and no program.

Enters: a call of an operator that stands for several. Leaves: the one that families tell about.
"""

from __future__ import annotations

from meshwright.capture.aten import Described
from meshwright.graph.model import Attributes

FORWARD = ("stride", "padding", "dilation", "groups")
BACKWARD = (*FORWARD, "output_padding")


def convolution_form(
    inputs: tuple[str | None, ...], attributes: Attributes, spatial: int
) -> Described[str]:
    """A convolution, which is transposed or not, over so many spatial dims.

    >>> told = (("groups", 1), ("output_padding", (0,)), ("padding", (1,)), ("transposed", False))
    >>> convolution_form(("x", "w"), told, 1)
    Described(kind='conv1d', inputs=('x', 'w'), attributes=(('groups', 1), ('padding', (1,))))
    """
    transposed = bool(dict(attributes).get("transposed"))
    kept = BACKWARD if transposed else FORWARD
    kind = f"conv_transpose{spatial}d" if transposed else f"conv{spatial}d"
    return Described(kind, inputs, tuple(own for own in attributes if own[0] in kept))
