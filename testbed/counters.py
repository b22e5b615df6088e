"""Bytes that crossed the edges. Enters: edges and what the kernel counts in their fabric. Leaves: a
`Carried` for each. Counted are packets as the kernel hands them over, headers included: half a
percent above the data of large messages, and what ranks say to find each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.base.quantities import Bytes
from testbed import netlink
from testbed.tree import Edge


class Carried(NamedTuple):
    """What crossed the edge above one instance of a level."""

    level: str
    instance: int
    out: Bytes
    """From the instance to the rest."""
    into: Bytes


def read_counters(fabric: str, tree: Sequence[Edge]) -> tuple[Carried, ...]:
    """Bytes since the edges were laid, read at their upper ends."""
    ends, carried = netlink.counted(fabric), []
    for edge, (received, sent) in ((it, ends[it.upper]) for it in tree):
        carried.append(Carried(edge.level, edge.instance, Bytes(received), Bytes(sent)))
    return tuple(carried)


def difference(later: Sequence[Carried], earlier: Sequence[Carried]) -> tuple[Carried, ...]:
    """What crossed each edge between two readings.

    >>> a, b = Carried("node", 0, Bytes(5), Bytes(7)), Carried("node", 0, Bytes(25), Bytes(8))
    >>> difference([b], [a])
    (Carried(level='node', instance=0, out=20, into=1),)
    """
    return tuple(
        now._replace(out=Bytes(now.out - then.out), into=Bytes(now.into - then.into))
        for now, then in zip(later, earlier, strict=True)
    )
