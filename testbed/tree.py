"""The tree that tiers make. Enters: `Tier`s. Leaves: its edges, in the order of their lower ends,
its switches and the token buckets at the ends. Nothing here lays anything.

All switches are bridges in one namespace, the fabric; a leaf is a namespace of its own. An edge is
a veth pair: its upper end `down<n>` is a port of the switch above, its lower end a port `up<n>` of
the switch below or `eth0` of a leaf. Each end limits what it sends with a token bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.base.quantities import Bytes, BytesPerSecond
from testbed.tiers import Tier

INTERFACE = "eth0"
FABRIC = "fabric"

SEGMENT, FRAME = 1448, 1514
"""Bytes of data in a full TCP segment, and of the Ethernet frame that carries it."""

LEAST_BURST = 128 * 1024
"""Smaller than two packets of 64 KiB, and the bucket cuts them into segments at four times the
work."""

QUEUE = Bytes(16 << 20)
"""Bytes that may wait for a bucket: more than all windows together (see `netlink.SETTINGS`), so
that nothing is dropped. Dropped packets were sent again, up to 5 % of all, and times varied by 5 %
instead of 0.5 % where a fast edge feeds a slow one."""


class Edge(NamedTuple):
    """What joins an instance of a level to the switch above it."""

    level: str
    instance: int
    """Which of all instances of its level, in row-major order."""
    number: int
    """Which of all edges."""
    above: int
    """The switch above."""
    below: int | None
    """The switch below; None: a leaf, the one numbered like the instance."""
    out: BytesPerSecond
    into: BytesPerSecond

    @property
    def upper(self) -> str:
        """The end at the switch above."""
        return f"down{self.number}"

    @property
    def lower(self) -> str:
        """The end at the switch below, or in the leaf."""
        return INTERFACE if self.below is None else f"up{self.number}"

    @property
    def plugs(self) -> tuple[tuple[str, str], ...]:
        """Its ends in the fabric, each with its switch."""
        above = (self.upper, _switch(self.above))
        return (above,) if self.below is None else (above, (self.lower, _switch(self.below)))


class Bucket(NamedTuple):
    """A token bucket: it limits what one end of an edge sends."""

    end: str
    rate: BytesPerSecond
    """Of frames."""
    burst: Bytes
    """What may pass at once."""
    queue: Bytes
    """What may wait."""


def edges(tiers: Sequence[Tier]) -> tuple[Edge, ...]:
    """All edges, outer tiers first. Switch 0 is the root; every edge not above a leaf adds one.

    >>> slow, fast = Tier("rack", 2, 1e7, 1e7), Tier("node", 2, 1e8, 1e8)
    >>> [(e.level, e.instance, e.above, e.below) for e in edges([slow, fast])]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('rack', 0, 0, 1), ('rack', 1, 0, 2),
     ('node', 0, 1, None), ('node', 1, 1, None), ('node', 2, 2, None), ('node', 3, 2, None)]
    """
    laid_edges: list[Edge] = []
    first_above, instances = 0, 1
    for depth, tier in enumerate(tiers):
        instances *= tier.cardinality
        is_leaf = depth == len(tiers) - 1
        first_below = len(laid_edges) + 1
        for i in range(instances):
            above = first_above + i // tier.cardinality
            below = None if is_leaf else first_below + i
            laid_edges.append(
                Edge(tier.level, i, len(laid_edges), above, below, tier.out, tier.into)
            )
        first_above = first_below
    return tuple(laid_edges)


def address(leaf: int) -> str:
    """Where a leaf is found. Namespaces see only their own tree, so every tree may use the same."""
    return f"10.77.0.{leaf + 1}"


def switches(tree: Sequence[Edge]) -> tuple[str, ...]:
    """The names of all switches, the root first."""
    numbers = {0} | {edge.below for edge in tree if edge.below is not None}
    return tuple(map(_switch, sorted(numbers)))


def fabric_buckets(tree: Sequence[Edge]) -> tuple[Bucket, ...]:
    """A limit at every end in the fabric."""
    upper = [bucket(edge.upper, on_the_wire(edge.into)) for edge in tree]
    lower = [bucket(edge.lower, on_the_wire(edge.out)) for edge in tree if edge.below is not None]
    return (*upper, *lower)


def _switch(number: int) -> str:
    return f"switch{number}"


def on_the_wire(rate: BytesPerSecond) -> BytesPerSecond:
    """The rate of frames that carry data at `rate`.

    Cluster files give effective rates, what a large message gets, and a bucket counts headers too.
    """
    return BytesPerSecond(rate * FRAME / SEGMENT)


def bucket(end: str, rate: BytesPerSecond) -> Bucket:
    """The token bucket that limits an end to a rate.

    >>> bucket("eth0", BytesPerSecond(25e6))
    Bucket(end='eth0', rate=25000000.0, burst=131072, queue=16777216)
    """
    return Bucket(end, rate, Bytes(max(LEAST_BURST, int(rate / 1000))), QUEUE)
