"""Kernel extents (M, N, K of a matrix product): rows, columns and what is summed over. Enters: a
call. Leaves: what the efficiency of a product falls with (`cost.operator`), by role.
"""

from __future__ import annotations

import math

from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Call

GROUPED = "_grouped_mm"


def extents_of(call: Call) -> dict[str, int]:
    """The extents of a call's splits, multiplied by what they do to a kernel.

    Samples and attributes, which play the same part in every kernel, are its rows. A convolution
    sums over its window in every input channel. What is summed behind a softmax, as keys are, is
    no dim of one product.

    >>> from meshwright.graph.operator_graph import Spec
    >>> x, w, y = Spec("float32", (8, 16, 3)), Spec("float32", (5, 3)), Spec("float32", (8, 16, 5))
    >>> extents_of(Call(kind="linear", inputs=(x, w), outputs=(y,)))
    {'rows': 128, 'parameter': 5, 'reduction': 3}
    """
    extents: dict[str, int] = {}
    if call.kind == GROUPED:
        return _group_extents(call)
    for split in family_of(call).splits(call):
        if split.role == "reduction" and split.statistics:
            continue
        name = "rows" if split.role in ("sample", "attribute") else split.role
        extent = split.extent * (convolution_window(call) if name == "reduction" else 1)
        # A product of one row is a slow one.
        if extent == 1 and name != "rows":
            continue
        extents[name] = extents.get(name, 1) * extent
    return extents


def _group_extents(call: Call) -> dict[str, int]:
    """Of a grouped product those of one group: its rows, if groups are equal, and its matrix."""
    rows, matrices = call.inputs[:2]
    assert rows is not None
    assert matrices is not None
    _, inner, columns = matrices.shape
    each = max(1, rows.shape[0] // group_count(call))
    return {"rows": each, "parameter": columns, "reduction": inner}


def group_count(call: Call) -> int:
    """How many products a grouped one is."""
    ends = call.inputs[2]
    assert ends is not None
    return max(1, ends.shape[0])


def convolution_window(call: Call) -> int:
    """How many elements of each input channel a convolution sums up; 1 for all else.

    >>> from meshwright.graph.operator_graph import Spec
    >>> x, w, y = (Spec("float32", shape) for shape in ((8, 3, 9, 9), (5, 3, 7, 7), (8, 5, 3, 3)))
    >>> convolution_window(Call(kind="conv2d", inputs=(x, w), outputs=(y,)))
    49
    """
    weight = call.inputs[1] if call.kind.startswith("conv") else None
    return math.prod(weight.shape[2:]) if weight is not None else 1
