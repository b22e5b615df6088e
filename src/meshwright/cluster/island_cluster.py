"""Irregular and mixed clusters as a sum of regular islands (P² leaves irregular hierarchies open).
Enters: regular clusters, and the links between them. Leaves: a checked `IslandCluster`.

    cluster = I_1 + I_2 + ... + I_k        each I a regular `Cluster` with its own device type

What goes from one island to another crosses, on both sides, the ports of the island's outermost
level (its network cards), every link that is `outward`, and the links of the join. A collective of
unlike members ends with its slowest; so it is priced, for each island, as if all others were like
it (`like`), and the longest of these prices counts. Nothing here knows of plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.names import require_name
from meshwright.base.quantities import (
    BytesPerSecond,
    OpsPerSecond,
    Seconds,
    counted,
    format_bandwidth,
    format_bytes,
    format_seconds,
)
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.cluster import MAX_LEVELS, WHOLE, Cluster, Device, Level, Link

ISLAND = "island"
"""The level above all islands; no level of an island has this name."""

MOST_ISLANDS = 64


class Island(msgspec.Struct, frozen=True, kw_only=True):
    """A regular part of a cluster."""

    name: str
    cluster: Cluster

    def __post_init__(self) -> None:
        require_name(self.name, "an island", {WHOLE: "the whole cluster"})
        names = {*self.cluster.level_names, *(name for name, _ in self.cluster.levels[-1].blocks)}
        if ISLAND in names:
            raise InputError(
                f"island {self.name!r} has a level {ISLAND!r}", "that is the level above: rename it"
            )
        if len(self.cluster.levels) >= MAX_LEVELS:
            raise InputError(
                f"island {self.name!r} has {len(self.cluster.levels)} levels",
                f"give at most {MAX_LEVELS - 1}: the islands are a level, too",
            )


@printed
class IslandCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of several regular islands."""

    name: str
    islands: tuple[Island, ...]
    join: tuple[Link, ...] = ()
    """What joins islands besides their own network: owners are levels of islands, "island" or
    "cluster"."""
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not 2 <= len(self.islands) <= MOST_ISLANDS:
            raise InputError(
                f"cluster {self.name!r} has {counted(len(self.islands), 'island')}",
                f"give 2 to {MOST_ISLANDS}; one alone is a regular cluster",
            )
        for name, count in Counter(island.name for island in self.islands).items():
            if count > 1:
                raise InputError(f"{count} islands are called {name!r}", "give each its own name")
        for island in self.islands:
            if not self.join and island.cluster.machine is None:
                raise InputError(
                    f"nothing joins island {island.name!r} to the others: it is one machine "
                    "without a network",
                    "describe the links between islands in [[join]]",
                )
            self.like(island, 2)

    def __len__(self) -> int:
        return len(self.islands)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return sum(island.cluster.devices for island in self.islands)

    def island(self, name: str) -> Island:
        """An island by its name."""
        for island in self.islands:
            if island.name == name:
                return island
        known = [island.name for island in self.islands]
        raise InputError(f"cluster {self.name!r} has no island {name!r}", nearest(name, known))

    def like(self, island: Island, count: int, *, mixed: bool = False) -> Cluster:
        """The regular cluster of so many islands that are all like one of these.

        With `mixed`, for groups whose transfers inside islands and between them go on at once: they
        share the ports (else only one of the two crosses them, and the ports are the join's, too).
        """
        cluster, outer = island.cluster, island.cluster.levels[0]
        crossed = [
            link
            for link in outer.links
            if link.kind == "port" and not link.outward and cluster.owner_level(link.per) >= 0
        ]
        both = {link.name for link in crossed if mixed and not link.hub}
        ports = tuple(
            # What is outward below counts its latency there.
            msgspec.structs.replace(
                link, hub=False, latency=Seconds(0.0) if link.name in both else link.latency
            )
            for link in crossed
        )
        outer = msgspec.structs.replace(
            outer,
            links=tuple(
                msgspec.structs.replace(link, outward=True) if link.name in both else link
                for link in outer.links
            ),
        )
        taken = {link.name for link in ports}
        join = tuple(
            msgspec.structs.replace(link, name=_free(link.name, taken)) for link in self.join
        )
        return msgspec.structs.replace(
            cluster,
            name=f"{self.name}, as {island.name}",
            levels=(
                Level(name=ISLAND, cardinality=count, links=(*join, *ports)),
                outer,
                *cluster.levels[1:],
            ),
            machine=cluster.machine or ISLAND,
        )

    def sheet(self) -> Sheet:
        """The islands, and what joins them."""
        return Sheet(
            f"{self.name}: {counted(self.devices, 'device')} on "
            f"{counted(len(self.islands), 'island')}",
            tuple(
                (
                    f"join {link.name}",
                    f"{format_bandwidth(link.out)} per {link.per}, {format_seconds(link.latency)}",
                )
                for link in self.join
            ),
            ("island", "levels", "devices", "device", "memory"),
            tuple(
                (
                    island.name,
                    levels_text(island.cluster),
                    str(island.cluster.devices),
                    island.cluster.device.name,
                    format_bytes(island.cluster.device.memory),
                )
                for island in self.islands
            ),
        )


Machine = Cluster | IslandCluster


def regular_parts(machine: Machine) -> tuple[Cluster, ...]:
    """The regular clusters that a machine is the sum of."""
    if isinstance(machine, Cluster):
        return (machine,)
    return tuple(island.cluster for island in machine.islands)


def levels_text(cluster: Cluster) -> str:
    """The levels of a regular cluster, as "node 4 x gpu 8"."""
    return " x ".join(f"{level.name} {level.cardinality}" for level in cluster.levels)


def summed(
    name: str, islands: Iterable[Island], join: tuple[Link, ...], description: str, source: str
) -> Machine:
    """The sum of islands; of one alone, that island's cluster."""
    every = tuple(islands)
    if len(every) == 1:
        return every[0].cluster
    return IslandCluster(
        name=name, islands=every, join=join, description=description, source=source
    )


def slowed(device: Device, speed: float) -> Device:
    """A device that computes and reads its memory at a share of its speed (a straggler).

    >>> slowed(Cluster.named("dgx-h100").device, 0.5).name
    'H100-SXM5-80GB at 50%'
    """
    if not 0 < speed <= 1:
        raise InputError(f"a device has the speed {speed:g}", "give a share above 0 and up to 1")
    if speed == 1:
        return device
    return msgspec.structs.replace(
        device,
        name=f"{device.name} at {speed:.3g}"
        if speed * 100 % 1
        else f"{device.name} at {speed:.0%}",
        memory_bandwidth=BytesPerSecond(device.memory_bandwidth * speed),
        peak=tuple((dtype, OpsPerSecond(rate * speed)) for dtype, rate in device.peak),
        prices="",
    )


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "-join"
    return name
