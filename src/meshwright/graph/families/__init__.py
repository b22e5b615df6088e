"""Operator family lookup: by kind, or by the index notation that an operator carries.

There is no registry: what a user tells of an operator stands in its attribute `definition`, so it
goes wherever the operator goes, into plan files and other processes (decision 0023).

>>> from meshwright.graph.operator_graph import Spec
>>> x, line = Spec("float32", (4, 8)), "swish(x)[i..] = x[i..] * sigmoid(x[i..])"
>>> swish = Call(kind="my.swish", inputs=(x,), outputs=(x,), attributes=(("definition", line),))
>>> [split.name for split in family_of(swish).splits(swish)]
['sample', 'dim1']
"""

from __future__ import annotations

from meshwright.graph.families import (
    arrangement,
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    experts,
    images,
    indexing,
    losses,
    matrices,
    normalisation,
    parallel,
    pointwise,
    pooling,
    products,
    random_tensors,
    recurrent,
    reductions,
    reshape,
    sections,
    softmax,
    spectral,
)
from meshwright.graph.families.defined import defined_by
from meshwright.graph.families.opaque import Opaque
from meshwright.graph.family import DEFINITION, Family
from meshwright.graph.operator_graph import Call, Operator

_FILES = (
    products, contraction, convolution, pooling, images, attention, embedding, recurrent,
    normalisation, softmax, losses, elementwise, pointwise, spectral, matrices, reductions, reshape,
    arrangement, sections, indexing, creation, random_tensors, parallel, experts,
)  # fmt: skip

BUILT_IN: dict[str, Family] = {
    kind: family for file in _FILES for kind, family in file.KINDS.items()
}
"""Every kind that comes with Meshwright."""

_OPAQUE = Opaque()


def family_of(operator: Call | Operator) -> Family:
    """What tells about an operator; the opaque family if nobody does."""
    built_in = BUILT_IN.get(operator.kind)
    if built_in is not None:
        return built_in
    line = dict(operator.attributes).get(DEFINITION)
    return defined_by(line) if isinstance(line, str) else _OPAQUE


def has_family(operator: Call | Operator) -> bool:
    """Whether somebody told about an operator."""
    return family_of(operator) is not _OPAQUE
