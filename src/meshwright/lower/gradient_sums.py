"""Gradient reduction of a bucket: all-reduce, or reduce-scatter under ZeRO. Enters: a
`ParallelGraph`, a bucket, a device's coordinates. Leaves: `GradientSum`s over the same devices, and
the returns that travel by themselves.

A parameter that is sharded is cut once more, into whole rows, over the devices that would hold
copies of its piece (`buckets`), or over those of them that are near each other; what is summed
there is then summed between the copies of each shard (HSDP).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.collective import Collective
from meshwright.lower.buckets import Bucket, BucketParameter, CopySum
from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.transfers import GroupCollective, Step


class GradientSum(NamedTuple):
    """Gradients of one dtype that travel as one row of numbers."""

    parameters: tuple[BucketParameter, ...]
    step: GroupCollective | None
    """The collective that sums them; None if every member gets the sum of its shard alone."""
    copies: CopySum | None = None
    """What sums its shard once more, over those that have a copy of it."""


def sums(
    parallel: ParallelGraph, bucket: Bucket, coordinates: Coordinates
) -> tuple[GradientSum, ...]:
    """What a device sums of a bucket, in an order that does not depend on what it has."""
    by_key: dict[tuple[str, ...], list[tuple[BucketParameter, GroupCollective | None]]] = {}
    key: tuple[str, ...]
    for kept in bucket.parameters:
        if not kept.returns or not parallel.made[kept.name].forward.holds(coordinates):
            continue
        dtype = parallel.plan.graph.specs[kept.name].dtype
        if kept.shards:
            key = "", f"{kept.shards} {kept.copies}", dtype
            by_key.setdefault(key, []).append((kept, None))
        elif (step := _single(parallel.returns[kept.returns[0]].steps)) is not None:
            key = str(step.inside), str(step.beside), dtype
            by_key.setdefault(key, []).append((kept, step))
    return tuple(
        GradientSum(tuple(kept for kept, _ in pairs), step, first.copies)
        for _, pairs in sorted(by_key.items())
        for first, step in pairs[:1]
    )


def alone(parallel: ParallelGraph, kept: BucketParameter) -> tuple[int, ...]:
    """The returns of a parameter that travel by themselves."""
    if not kept.returns:
        return ()
    first = parallel.returns[kept.returns[0]].steps
    return kept.returns[1:] if kept.shards or _single(first) is not None else kept.returns


def gathered(
    parallel: ParallelGraph, bucket: Bucket, coordinates: Coordinates
) -> tuple[tuple[BucketParameter, ...], ...]:
    """The sharded parameters of a bucket that a device has: those that are gathered together."""
    by_key: dict[tuple[tuple[int, ...], str], list[BucketParameter]] = {}
    for kept in bucket.parameters:
        if kept.shards and parallel.made[kept.name].forward.holds(coordinates):
            key = kept.shards, parallel.plan.graph.specs[kept.name].dtype
            by_key.setdefault(key, []).append(kept)
    return tuple(map(tuple, by_key.values()))


def _single(steps: Sequence[Step]) -> GroupCollective | None:
    """The one step of a plain sum."""
    if len(steps) == 1 and isinstance(steps[0], GroupCollective):
        return steps[0] if steps[0].kind is Collective.ALL_REDUCE else None
    return None
