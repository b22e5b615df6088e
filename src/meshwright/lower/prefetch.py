"""Prefetch of ZeRO-3 parameters (all-gather ahead of use). Enters: instructions, and which of them
use which buckets. Leaves: the instructions with those that put buckets together and drop them.

A place is where segments run on the same devices. Its uses are numbered in their order, and a
bucket is on its way from AHEAD uses before its first one on, and there to its last one; where it
would be on its way again at once, or belongs to the same layer that runs again, it stays. What
several places use is put together for each use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

AHEAD = 4
"""About as many as a layer has: what is small in between must not be all that hides a large one."""


class BucketUse(NamedTuple):
    """An instruction that reads buckets."""

    at: int
    """Its place among the instructions."""
    place: Hashable
    buckets: tuple[int, ...]
    layer: Hashable | None
    """What runs again with it, and so keeps what it has."""


class Stay(NamedTuple):
    """A bucket is there from before one instruction to after another."""

    bucket: int
    first: int
    last: int


def stays(uses: Sequence[BucketUse]) -> Iterator[Stay]:
    """When buckets are there.

    >>> order = (0, 1, 2, 3, 4, 5, 0)
    >>> kept = stays([BucketUse(at, "gpu", (bucket,), None) for at, bucket in enumerate(order)])
    >>> [tuple(interval) for interval in kept]
    [(0, 0, 0), (0, 2, 6), (1, 0, 1), (2, 0, 2), (3, 0, 3), (4, 0, 4), (5, 1, 5)]
    """
    rows: Mapping[Hashable, list[BucketUse]] = defaultdict(list)
    by_bucket: Mapping[int, list[tuple[BucketUse, int]]] = defaultdict(list)
    for use in uses:
        for bucket in use.buckets:
            by_bucket[bucket].append((use, len(rows[use.place])))
        rows[use.place].append(use)
    for bucket, bucket_uses in sorted(by_bucket.items()):
        if len({use.place for use, _ in bucket_uses}) > 1:
            yield from (Stay(bucket, use.at, use.at) for use, _ in bucket_uses)
            continue
        row = rows[bucket_uses[0][0].place]
        begin, (before, number) = bucket_uses[0][1], bucket_uses[0]
        for use, later in bucket_uses[1:]:
            kept = use.layer is not None and use.layer == before.layer
            if later - number > AHEAD + 1 and not kept:
                yield Stay(bucket, row[max(0, begin - AHEAD)].at, before.at)
                begin = later
            before, number = use, later
        yield Stay(bucket, row[max(0, begin - AHEAD)].at, before.at)
