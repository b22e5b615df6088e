"""Edge tables: producer-consumer edges between op groups, as one micro-batch has them. Enters: a
graph, a number of micro-batches, the bytes of a bucket. Leaves: bundles, and what compiled code
knows of them.

All of it is the same for every plan with these options, and so is found once for each graph.
Where the tasks are that carry the bundles is told by `build_template`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, NamedTuple

import msgspec
import numpy as np

from meshwright.base.once import once
from meshwright.graph.operator_graph import ITEM_BYTES, OperatorGraph
from meshwright.lower.bundles import EdgeConsumer, TensorEdge, bucketed, bundles, layers_of
from meshwright.sharding.states import State
from meshwright.sharding.unit import OpGroup, SharedStatistics
from meshwright.sharding.units import units
from meshwright.simulate.operator_table import MOST_SPLITS
from meshwright.simulate.task_template import NONE, Bytes8, Floats
from meshwright.simulate.tasks import Flags, Indices, Ints


class EdgeTables(NamedTuple):
    """The bundles of a graph, and the fields of `Skeleton` that follow from them alone."""

    bundles: tuple[TensorEdge, ...]
    tables: Mapping[str, Any]
    first_leg: Indices
    """[sources] the first reading of a tensor, or NONE."""
    width: Floats
    """[sources] bytes of an element."""
    shape: Ints
    """[sources, dims] elements along each dim, 1 beyond the last."""
    stacked: Flags
    """[sources] parameters that the module has with their first two dims as one."""


@once
def joined(graph: OperatorGraph, micro_batches: int, bucket: int) -> EdgeTables:
    """The bundles of a graph as one micro-batch carries them."""
    groups = units(graph)
    edges = bucketed(bundles(graph, groups), bucket, layers_of(graph, groups))
    carried = tuple(_micro(bundle, groups, micro_batches) for bundle in edges)
    tables = _of_units(groups, carried) | _of_sources(carried) | _of_legs(groups, carried)
    sources = [source for bundle in carried for source in bundle.sources]
    first = np.full(len(sources), NONE, np.int32)
    first[tables["leg_source"][::-1]] = np.arange(len(tables["leg_source"]))[::-1]
    width = [ITEM_BYTES[graph.specs[source.name].dtype] for source in sources]
    together = {parameter.tensor.name for parameter in graph.parameters if parameter.stacked}
    stacked = np.array([source.name in together for source in sources], np.bool_)
    shape = _shapes([graph.specs[source.name].shape for source in sources])
    return EdgeTables(carried, tables, first, np.array(width, np.float64), shape, stacked)


def _micro(bundle: TensorEdge, groups: tuple[OpGroup, ...], micro_batches: int) -> TensorEdge:
    """A bundle as one micro-batch carries it."""
    if micro_batches == 1 or bundle.parameters:
        return bundle
    maker = groups[bundle.maker]
    cut = [n for n in range(len(maker.splits)) if maker.micro_ways(n, micro_batches) > 1]
    shared = [any(s.boundary.forward[n] >= 0 for n in cut) for s in bundle.sources]
    return msgspec.structs.replace(
        bundle,
        sources=tuple(
            msgspec.structs.replace(source, bytes=source.bytes // micro_batches) if part else source
            for source, part in zip(bundle.sources, shared, strict=True)
        ),
        consumers=tuple(
            _micro_leg(consumer, groups[consumer.unit], micro_batches)
            if shared[consumer.tensor]
            else consumer
            for consumer in bundle.consumers
        ),
    )


def _micro_leg(consumer: EdgeConsumer, reader: OpGroup, micro_batches: int) -> EdgeConsumer:
    """Halos and exchanges have rows of one micro-batch, and so have statistics of each sample."""
    halo = tuple(rows // micro_batches for rows in consumer.boundary.halo)
    statistics = tuple(
        statistic
        if statistic is None or reader.samples not in statistic.cut_by
        else statistic._replace(bytes=statistic.bytes // micro_batches)
        for statistic in consumer.boundary.statistics
    )
    exchanged = tuple(rows // micro_batches for rows in consumer.boundary.exchanged)
    boundary = msgspec.structs.replace(
        consumer.boundary, halo=halo, statistics=statistics, exchanged=exchanged
    )
    return msgspec.structs.replace(consumer, boundary=boundary)


def _of_units(groups: tuple[OpGroup, ...], carried: tuple[TensorEdge, ...]) -> dict[str, Any]:
    near: list[set[int]] = [set() for _ in groups]
    for b, bundle in enumerate(carried):
        for consumer in bundle.consumers:
            near[consumer.unit].add(b)
            near[bundle.sources[consumer.tensor].maker].add(b)
    return {
        "flows": np.array([unit.flows for unit in groups], np.bool_),
        "unit_bundle_start": _starts(near),
        "unit_bundle": np.array([b for some in near for b in sorted(some)], np.int32),
        "maker": np.array([bundle.maker for bundle in carried], np.int32),
        "parameters": np.array([bundle.parameters for bundle in carried], np.bool_),
    }


def _of_sources(carried: tuple[TensorEdge, ...]) -> dict[str, Any]:
    sources = [source for bundle in carried for source in bundle.sources]
    return {
        "source_start": _starts(bundle.sources for bundle in carried),
        "source_maker": np.array([source.maker for source in sources], np.int32),
        "source_bytes": np.array([source.bytes for source in sources], np.float64),
        "source_there": _codes([source.boundary.forward for source in sources]),
        "source_back": _codes([source.boundary.backward or () for source in sources]),
        "trained": np.array([source.trained for source in sources], np.bool_),
    }


def _of_legs(groups: tuple[OpGroup, ...], carried: tuple[TensorEdge, ...]) -> dict[str, Any]:
    first = _starts(bundle.sources for bundle in carried)
    consumers = [(b, consumer) for b, bundle in enumerate(carried) for consumer in bundle.consumers]
    boundaries = [consumer.boundary for _, consumer in consumers]
    flows = [
        consumer.boundary.backward is not None and groups[consumer.unit].flows
        for _, consumer in consumers
    ]
    return {
        "leg_start": _starts(bundle.consumers for bundle in carried),
        "leg_source": np.array([first[b] + consumer.tensor for b, consumer in consumers], np.int32),
        "leg_unit": np.array([consumer.unit for _, consumer in consumers], np.int32),
        "leg_there": _codes([boundary.forward for boundary in boundaries]),
        "leg_back": _codes([boundary.backward or () for boundary in boundaries]),
        "leg_flows": np.array(flows, np.bool_),
        "leg_reads": np.ones(len(consumers), np.bool_),
        "leg_extra": np.array(
            [
                bool(boundary.halo or boundary.statistics or boundary.exchanged)
                for boundary in boundaries
            ],
            np.bool_,
        ),
        "leg_halo": _amounts([boundary.halo for boundary in boundaries]),
        **_of_statistics([boundary.statistics for boundary in boundaries]),
        "leg_exchanged": _amounts([boundary.exchanged for boundary in boundaries]),
    }


def _of_statistics(rows: list[tuple[SharedStatistics | None, ...]]) -> dict[str, Any]:
    filled = [[statistic or SharedStatistics(0, 0, 0, ()) for statistic in row] for row in rows]
    rounds = np.zeros((len(rows), MOST_SPLITS, 2), np.int64)
    cut_by = np.zeros((len(rows), MOST_SPLITS), np.int64)
    for number, row in enumerate(filled):
        for split, shared in enumerate(row):
            rounds[number, split] = shared.forward, shared.backward
            cut_by[number, split] = sum(1 << other for other in shared.cut_by)
    return {
        "leg_statistics": _amounts([tuple(statistic.bytes for statistic in row) for row in filled]),
        "leg_rounds": rounds,
        "leg_cut_by": cut_by,
    }


def _shapes(shapes: list[tuple[int, ...]]) -> Ints:
    padded = np.ones((len(shapes), max(map(len, shapes), default=0) + 1), np.int64)
    for row, shape in zip(padded, shapes, strict=True):
        row[: len(shape)] = shape
    return padded


def _starts(lists: Iterable[Sized]) -> Indices:
    return np.cumsum([0, *map(len, lists)]).astype(np.int32)


def _codes(rows: list[tuple[State, ...]]) -> Bytes8:
    codes = np.full((len(rows), MOST_SPLITS), NONE, np.int8)
    for number, row in enumerate(rows):
        codes[number, : len(row)] = row
    return codes


def _amounts(rows: list[tuple[int, ...]]) -> Floats:
    amounts = np.zeros((len(rows), MOST_SPLITS))
    for number, row in enumerate(rows):
        amounts[number, : len(row)] = row
    return amounts
