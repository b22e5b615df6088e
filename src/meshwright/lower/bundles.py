"""Edges between op groups: the producers and all consumers of tensors that travel together. Enters:
a graph's units. Leaves: `TensorEdge`s.

A bundle is what a unit makes and others read, or the parameters that the same units share. A
consumer is one reading: how its unit needs the tensor, and how it leaves its gradient. A parameter
lies as its first reader needs it. Nothing here knows of machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from meshwright.graph.layers import layer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import LAYERWISE
from meshwright.sharding.states import gradient_needed
from meshwright.sharding.unit import BoundaryTensor, OpGroup


class EdgeConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a bundle, read by one unit."""

    tensor: int
    """Its number in the bundle."""
    unit: int
    boundary: BoundaryTensor


class EdgeProducer(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a bundle, as it is made."""

    name: str
    maker: int
    """The unit that makes it; of a parameter the first that reads it."""
    bytes: int
    boundary: BoundaryTensor
    trained: bool
    """Whether it is a parameter that learns."""


class TensorEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that travel together."""

    maker: int
    """The unit that makes them; of parameters that of the first."""
    parameters: bool
    sources: tuple[EdgeProducer, ...]
    consumers: tuple[EdgeConsumer, ...]


def bundles(graph: OperatorGraph, units: tuple[OpGroup, ...]) -> tuple[TensorEdge, ...]:
    """Every tensor that crosses between units, and every parameter that one reads."""
    readers: dict[str, list[tuple[int, BoundaryTensor]]] = defaultdict(list)
    for number, unit in enumerate(units):
        for boundary in unit.inputs:
            readers[boundary.tensor].append((number, boundary))
    produced = [
        _bundle(number, False, [(boundary, False)], readers)
        for number, unit in enumerate(units)
        for boundary in unit.outputs
    ]
    shared: dict[tuple[int, ...], list[tuple[BoundaryTensor, bool]]] = defaultdict(list)
    for parameter in graph.parameters:
        uses = readers.get(parameter.tensor.name, [])
        if uses:
            whom = tuple(sorted({number for number, _ in uses}))
            shared[whom].append((_home(uses[0][1]), parameter.trainable))
    kept = [_bundle(whom[0], True, boundaries, readers) for whom, boundaries in shared.items()]
    return (*produced, *kept)


def _home(boundary: BoundaryTensor) -> BoundaryTensor:
    """How a parameter lies, given how its first reader needs it."""
    gradient = None if boundary.backward is None else tuple(map(gradient_needed, boundary.forward))
    return BoundaryTensor(
        tensor=boundary.tensor, bytes=boundary.bytes, forward=boundary.forward, backward=gradient
    )


def _bundle(
    maker: int,
    parameters: bool,
    boundaries: list[tuple[BoundaryTensor, bool]],
    readers: dict[str, list[tuple[int, BoundaryTensor]]],
) -> TensorEdge:
    return TensorEdge(
        maker=maker,
        parameters=parameters,
        sources=tuple(
            EdgeProducer(
                name=boundary.tensor,
                maker=maker,
                bytes=boundary.bytes,
                boundary=boundary,
                trained=trained,
            )
            for boundary, trained in boundaries
        ),
        consumers=tuple(
            EdgeConsumer(tensor=tensor, unit=number, boundary=boundary)
            for tensor, (source, _) in enumerate(boundaries)
            for number, boundary in readers[source.tensor]
        ),
    )


Layer = tuple[int, int] | None
"""The repeat and the copy in which a unit lies, if any."""


def layers_of(graph: OperatorGraph, units: Sequence[OpGroup]) -> list[Layer]:
    """The repeated layer of each unit."""
    known = layer_of(graph)
    return [known.get(unit.name) for unit in units]


def bucketed(
    edges: tuple[TensorEdge, ...], least: int, layers: Sequence[Layer]
) -> tuple[TensorEdge, ...]:
    """The bundles, with parameters put together until they have so many bytes, or those of a
    repeated layer if that is LAYERWISE.

    As the backward pass goes, from the last unit to the first; with 0 every bundle stays alone.
    """
    if not least:
        return edges
    kept = sorted((edge for edge in edges if edge.parameters), key=lambda edge: -edge.maker)
    buckets: list[list[TensorEdge]] = []
    for bundle in kept:
        layer = layers[bundle.maker]
        if not buckets:
            full = True
        elif least == LAYERWISE:
            full = layer is None or layer != layers[buckets[-1][-1].maker]
        else:
            full = sum(source.bytes for edge in buckets[-1] for source in edge.sources) >= least
        if full:
            buckets.append([])
        buckets[-1].append(bundle)
    return (*(edge for edge in edges if not edge.parameters), *map(_together, buckets))


def _together(bucket: list[TensorEdge]) -> TensorEdge:
    sources: list[EdgeProducer] = []
    consumers: list[EdgeConsumer] = []
    for bundle in bucket:
        first = len(sources)
        consumers += [
            msgspec.structs.replace(consumer, tensor=first + consumer.tensor)
            for consumer in bundle.consumers
        ]
        sources += bundle.sources
    return TensorEdge(
        maker=bucket[0].maker, parameters=True, sources=tuple(sources), consumers=tuple(consumers)
    )
