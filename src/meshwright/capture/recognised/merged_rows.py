"""Un-flattening of rows: reshapes around products undone, so that samples can be sharded. Enters: a
captured graph. Leaves: the same function, with products over rows as they were before.

PyTorch's attention merges positions and samples into rows, multiplies, and takes them apart again:

    reshape [t, n, h, d] -> [t·n, h·d]     linear -> [t·n, o]     view -> [t, n, o]

So merged the rows of a sample do not lie together, and nothing could cut samples. Apart it can:

    reshape [t, n, h, d] -> [t, n, h·d]    linear -> [t, n, o]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor

SHAPE = {"view": "size", "reshape": "shape"}
"""Kinds that merge rows, each with the attribute that has the new shape."""

PARTING = (*SHAPE, "unflatten", "_unsafe_view")
"""Kinds that take rows apart."""


class _Place(NamedTuple):
    """A product between merging and parting."""

    merging: Operator
    product: Operator
    parting: Operator


def with_unflattened_rows(graph: OperatorGraph) -> OperatorGraph:
    """The graph with no rows merged only for a product."""
    replaced: dict[str, tuple[Operator, ...]] = {}
    makers = {tensor.name: operator for operator in graph.operators for tensor in operator.outputs}
    for place in filter(None, (_place(graph, operator, makers) for operator in graph.operators)):
        merging, product = _apart(place)
        replaced[place.merging.name] = (merging,)
        replaced[place.product.name] = (product,)
        replaced[place.parting.name] = ()
    if not replaced:
        return graph
    operators = (new for old in graph.operators for new in replaced.get(old.name, (old,)))
    return msgspec.structs.replace(graph, operators=tuple(operators))


def _place(
    graph: OperatorGraph, product: Operator, makers: Mapping[str, Operator]
) -> _Place | None:
    if product.kind != "linear":
        return None
    merging = makers.get(product.inputs[0] or "")
    if merging is None or merging.kind not in SHAPE:
        return None
    merged, multiplied = merging.outputs[0], product.outputs[0]
    readers = graph.consumers[multiplied.name]
    inside = {merged.name, multiplied.name}
    if len(graph.consumers[merged.name]) != 1 or len(readers) != 1 or inside & {*graph.outputs}:
        return None
    parting, before = readers[0], graph.specs[merging.inputs[0] or ""].shape
    rows = parting.outputs[0].spec.shape[:-1]
    alike = parting.outputs[0].spec.shape[-1:] == multiplied.spec.shape[-1:]
    if parting.kind not in PARTING or not alike or len(merged.dims) != 2 or len(rows) < 2:
        return None
    return _Place(merging, product, parting) if before[: len(rows)] == rows else None


def _apart(place: _Place) -> tuple[Operator, Operator]:
    """What merges the rest, and the product; its output is what the parting gave."""
    old, new = place.merging.outputs[0], place.parting.outputs[0]
    dims = (*new.dims[:-1], old.dims[-1])
    merged = Tensor(name=old.name, dtype=old.dtype, dims=dims)
    shape = tuple(size for _, size in dims)
    merging = msgspec.structs.replace(
        place.merging, outputs=(merged,), attributes=((SHAPE[place.merging.kind], shape),)
    )
    return merging, msgspec.structs.replace(place.product, outputs=(new,))
