"""Bytes that crossed the edges. Enters: edges and what `ip` counts in their fabric. Leaves: a
`Carried` for each. Counted are packets as the kernel hands them over, headers included: half a
percent above the data of large messages, and what ranks say to find each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.foundation.units import Bytes
from testbed.commands import command
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
    printed = command("ip", "-n", fabric, "-s", "-json", "link", "show")
    counted = {end["ifname"]: end["stats64"] for end in json.loads(printed)}
    return tuple(
        Carried(
            edge.level,
            edge.instance,
            out=Bytes(counted[edge.upper]["rx"]["bytes"]),
            into=Bytes(counted[edge.upper]["tx"]["bytes"]),
        )
        for edge in tree
    )


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
