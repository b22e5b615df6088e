"""Gradient buckets and ZeRO's sharded parameters. Enters: a `ParallelGraph`. Leaves: `Bucket`s
of parameters, as the simulator prices them.

A sharded parameter is cut as FSDP2 cuts: into whole rows of the first dim of which a piece has
more than one, ceil(rows / ways) for each axis of the mesh in turn, so that the last shards are
shorter or empty. That is what a DTensor can say. What has no dims is not sharded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.base.integers import from_digits
from meshwright.lower.bundles import bucketed, bundles, layers_of
from meshwright.lower.device_mesh import MeshSizes
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.parameter_axes import parameter_axes, shard_dim
from meshwright.sharding.states import PARTIAL, is_at

ElementRange = tuple[int, int]
"""The first of some elements and the last + 1."""


class CopySum(NamedTuple):
    """The sum of shards over the devices that hold copies of them, where ZeRO shards within fewer
    than all.
    """

    inside: tuple[int, ...]
    """The factors that are summed over."""
    beside: tuple[int, ...]
    """Those along which the same runs side by side."""


class BucketParameter(NamedTuple):
    """A parameter of a bucket."""

    name: str
    returns: tuple[int, ...]
    """How its readers leave its gradient, by number; none if it does not learn."""
    shards: tuple[int, ...]
    """The factors along which it is sharded: where its gradient is a pending sum."""
    axes: tuple[tuple[int, ...], ...] = ()
    """The same factors by axes of the mesh, in the order in which these cut it."""
    dim: int = 0
    """The dim that they cut."""
    copies: CopySum | None = None
    """What sums its shards once more, if others hold copies of them."""

    def stretches(self, machine: MeshSizes, shape: Sequence[int]) -> tuple[ElementRange, ...]:
        """The elements of a piece that each device along `shards` has, counted row by row.

        >>> kept = BucketParameter("w", (0,), (0, 1), ((1,), (0,)))
        >>> kept.stretches(MeshSizes((2, 2)), (7, 10))
        ((0, 20), (40, 60), (20, 40), (60, 70))
        """
        row = math.prod(shape[self.dim + 1 :])
        rows = [(0, math.prod(shape[: self.dim + 1]))]
        for axis in self.axes:
            ways = math.prod(machine.sizes[f] for f in axis)
            rows = [part for span in rows for part in _chunks(*span, ways)]
        order = [f for axis in self.axes for f in axis]
        sizes = [machine.sizes[f] for f in order]
        every = machine.along(self.shards, (0,) * len(machine.sizes))
        numbers = (from_digits([coordinates[f] for f in order], sizes) for coordinates in every)
        return tuple((rows[n][0] * row, rows[n][1] * row) for n in numbers)


def _chunks(first: int, last: int, ways: int) -> list[ElementRange]:
    """As `torch.chunk` and DTensor: equal ones, the last shorter or empty."""
    each = -(-(last - first) // ways)
    ends = [min(last, first + each * n) for n in range(ways + 1)]
    return list(pairwise(ends))


class Bucket(NamedTuple):
    """Parameters whose gradients travel together."""

    parameters: tuple[BucketParameter, ...]
    units: tuple[int, ...]
    """All units that read one of them."""


def buckets(parallel: ParallelGraph) -> tuple[Bucket, ...]:
    """The buckets of a plan, in the order in which the backward pass finishes them."""
    plan = parallel.plan
    kept = [
        bundle
        for bundle in bucketed(
            bundles(plan.graph, plan.units),
            plan.options.bucket,
            layers_of(plan.graph, plan.units),
        )
        if bundle.parameters
    ]
    formed = [
        Bucket(
            tuple(_kept(parallel, source.name, source.trained) for source in bundle.sources),
            tuple(sorted({consumer.unit for consumer in bundle.consumers})),
        )
        for bundle in sorted(
            kept, key=lambda bundle: -min(consumer.unit for consumer in bundle.consumers)
        )
    ]
    if not plan.options.zero:
        return tuple(formed)
    shards = {each.name: each.shards for bucket in formed for each in bucket.parameters}
    mesh = parameter_axes(parallel, shards)
    return tuple(
        bucket._replace(
            parameters=tuple(
                each._replace(axes=mesh.shards(each.name), dim=shard_dim(parallel, each.name))
                if each.shards
                else each
                for each in bucket.parameters
            )
        )
        for bucket in formed
    )


def _kept(parallel: ParallelGraph, name: str, trained: bool) -> BucketParameter:
    returns = tuple(n for n, gradient in enumerate(parallel.returns) if gradient.tensor == name)
    if not trained:
        return BucketParameter(name, (), ())
    if not (parallel.plan.options.zero and returns and parallel.made[name].forward.shape):
        return BucketParameter(name, returns, ())
    first = parallel.returns[returns[0]].lying.states
    summed = tuple(f for f, state in enumerate(first) if state == PARTIAL)
    shards = tuple(f for f in summed if parallel.plan.sharding[f])
    copied = tuple(f for f in summed if f not in shards)
    if not (shards and copied):
        return BucketParameter(name, returns, shards)
    beside = (f for f, state in enumerate(first) if not is_at(state) and f not in copied)
    return BucketParameter(name, returns, shards, copies=CopySum(copied, tuple(beside)))
