"""Hierarchical clusters: levels, links, devices. Enters: base units. Leaves: a checked `Cluster`.

Levels are listed from the outermost to the innermost; a level's cardinality is how many of its
instances one instance of the level above holds. Traffic between two instances of a level that
share everything above crosses the links of that level. Nothing here knows of collectives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import MOST, require_whole
from meshwright.base.names import require_name
from meshwright.base.quantities import (
    Bytes,
    BytesPerSecond,
    OpsPerSecond,
    Seconds,
    counted,
    format_bandwidth,
    format_bytes,
    format_ops,
    format_seconds,
)
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.overhead import Overhead
from meshwright.cluster.rates import JudgedSteps, Rates, Software

Duplex = Literal["full", "half"]
Kind = Literal["port", "ring"]

WHOLE = "cluster"
"""The owner of a link that the whole machine shares; no level may take this name."""

RESERVED = {
    WHOLE: "the owner of the links that the whole cluster shares",
    "root": "the level above all others in programs",
}
"""Names that no level and no block may take, and why."""

MAX_LEVELS = 6
MAX_CARDINALITY = 10**9


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a level, and who shares it.

    `per` names the owner: one such link for each instance of that level (or block). An owner at
    or inside the link's level gives a port, crossed by what leaves and what enters the owner; an
    owner outside it gives one medium shared by all traffic of the level inside that owner.
    A link of kind "ring" joins each member of the innermost level to its two neighbours and is
    used, instead of the ports, by traffic between neighbours.
    """

    name: str
    per: str
    out: BytesPerSecond
    into: BytesPerSecond
    latency: Seconds = Seconds(0.0)
    duplex: Duplex = "full"
    kind: Kind = "port"
    hub: bool = False
    """Traffic is staged in the memory of the first owner, which reaches it without the link."""
    outward: bool = False
    """Also crossed by traffic of the levels above, which leaves or enters through it."""

    def __post_init__(self) -> None:
        require_name(self.name, "a link")
        for word, rate in (("bandwidth out", self.out), ("bandwidth in", self.into)):
            if not (rate > 0 and math.isfinite(rate)):
                raise InputError(
                    f"link {self.name!r} has a {word} of {rate:g} B/s", "give one above 0"
                )
        if self.duplex == "half" and self.out != self.into:
            raise InputError(
                f"half-duplex link {self.name!r} has {self.out:g} B/s out, {self.into:g} B/s in",
                "give one bandwidth for both directions",
            )
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            raise InputError(
                f"link {self.name!r} has a latency of {self.latency:g} s", "give 0 s or more"
            )


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of the hierarchy with its links.

    `blocks` names runs of members that share links (PCIe switches), as (name, members of one).
    """

    name: str
    cardinality: int
    links: tuple[Link, ...]
    blocks: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name, "a level", RESERVED)
        require_whole(self.cardinality, f"level {self.name!r} has cardinality", MAX_CARDINALITY)
        if not self.links:
            raise InputError(
                f"level {self.name!r} has no link", "say what joins its instances in links"
            )
        _refuse_repeats((link.name for link in self.links), f"links of level {self.name!r}")
        for name, size in self.blocks:
            require_name(name, "a block", RESERVED)
            require_whole(size, f"block {name!r} of level {self.name!r} has size", MAX_CARDINALITY)
            if self.cardinality % size:
                raise InputError(
                    f"block {name!r} of level {self.name!r} has {size} members",
                    f"give a divisor of its cardinality {self.cardinality}",
                )


PEAKS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""What a device may have a peak rate for."""


class CommOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """What talking to others takes of a device's own time to compute: a processor sends by itself,
    an accelerator mostly has others do it.
    """

    message: Seconds
    """For each message, however small."""
    bandwidth: BytesPerSecond
    """Bytes that it sends, or receives, in a second of computing."""

    def __post_init__(self) -> None:
        if not (self.message >= 0 and math.isfinite(self.message)):
            raise InputError(f"a message takes {self.message:g} s of computing", "give 0 s or more")
        if not (self.bandwidth > 0 and math.isfinite(self.bandwidth)):
            raise InputError(
                f"a second of computing is worth {self.bandwidth:g} B", "give a bandwidth above 0"
            )


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerator (or processor) at the bottom of the hierarchy."""

    name: str
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    peak: tuple[tuple[str, OpsPerSecond], ...]
    """Peak rate by dtype, dense (without structured sparsity)."""
    prices: str = ""
    """Measured prices: a file of 'meshwright calibrate', or a table that ships; empty: none."""
    toll: CommOverhead | None = None
    """None: it computes as fast while it talks."""
    rates: Rates | msgspec.UnsetType = msgspec.UNSET
    """What kernels reach of it; unset, and left out of files: the usual."""
    fusing: Rates | msgspec.UnsetType = msgspec.UNSET
    """The same of software that fuses kernels; unset: as all other."""
    software: Software | msgspec.UnsetType = msgspec.UNSET
    """What runs kernels; unset: PyTorch, eagerly."""
    overhead: Overhead | msgspec.UnsetType = msgspec.UNSET
    """What a framework holds of its memory besides tensors; unset: nothing."""
    judged: JudgedSteps | msgspec.UnsetType = msgspec.UNSET
    """How well steps are predicted that were measured on it; unset: none were."""

    def __post_init__(self) -> None:
        if self.memory <= 0 or self.memory_bandwidth <= 0:
            raise InputError(
                f"device {self.name!r} has no memory or memory bandwidth", "give both above 0"
            )
        for dtype, rate in self.peak:
            if dtype not in PEAKS:
                raise InputError(
                    f"device {self.name!r} has a peak for {dtype!r}", nearest(dtype, PEAKS)
                )
            if rate <= 0:
                raise InputError(
                    f"device {self.name!r} has a peak of {rate:g} for {dtype}", "give one above 0"
                )
        products = self.running.products
        if products and products not in dict(self.peak):
            raise InputError(
                f"device {self.name!r} runs products in {products!r}, for which it has no peak",
                nearest(products, dict(self.peak)),
            )

    @property
    def running(self) -> Software:
        """What runs kernels."""
        return Software() if self.software is msgspec.UNSET else self.software

    @property
    def reached(self) -> Rates:
        """What kernels of its software reach of it."""
        usual = Rates() if self.rates is msgspec.UNSET else self.rates
        if not self.running.fuses or self.fusing is msgspec.UNSET:
            return usual
        return self.fusing


@printed
class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A hierarchical machine of identical devices.

    >>> from meshwright import Cluster
    >>> cluster = Cluster.named("gcp-a100", node=4)
    >>> cluster.hierarchy, cluster.devices
    ((4, 16), 64)
    """

    name: str
    levels: tuple[Level, ...]
    device: Device
    machine: str | None = None
    """The level whose instances are single machines; None if the cluster is one machine."""
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.levels) <= MAX_LEVELS:
            raise InputError(
                f"cluster {self.name!r} has {len(self.levels)} levels", f"give 1 to {MAX_LEVELS}"
            )
        blocks = tuple(name for level in self.levels for name, _ in level.blocks)
        _refuse_repeats((*self.level_names, *blocks), "levels and blocks")
        if self.devices > MOST:
            raise InputError(
                f"cluster {self.name!r} has {self.devices} devices", f"give at most {MOST}"
            )
        if self.machine is not None:
            self.level_index(self.machine)
        for level in self.levels[:-1]:
            if level.blocks or any(link.kind == "ring" or link.hub for link in level.links):
                raise InputError(
                    f"level {level.name!r} has blocks, or ring or hub links",
                    f"keep them to the innermost level, {self.levels[-1].name!r}",
                )
        owners = (*self.level_names, *blocks, WHOLE)
        for depth, level in enumerate(self.levels):
            for link in level.links:
                if link.per not in owners:
                    raise InputError(
                        f"link {link.name!r} is shared per {link.per!r}",
                        f"name a level or block: {nearest(link.per, owners)}",
                    )
                if self.owner_level(link.per) < depth:
                    _refuse_port_words(link, level)
        self._refuse_unjoined_members()

    def owner_level(self, per: str) -> int:
        """The level at or inside which the owner of a link lies: -1 for the whole cluster."""
        if per == WHOLE:
            return -1
        if per in dict(self.levels[-1].blocks):
            return len(self.levels) - 1
        return self.level_index(per)

    def _refuse_unjoined_members(self) -> None:
        """Any two members of the innermost level must be joined by a link of it.

        A port joins members of different owners, a hub also those of any owner but the first, a
        ring those at distance 1. Unjoined members thus share a block of every port; then the
        first members at their distance do too, as all blocks begin at member 0. Those lie in the
        smallest block, and beyond distance 2 nothing changes.
        """
        inner = self.levels[-1]
        blocks = dict(inner.blocks)
        ringed = any(link.kind == "ring" for link in inner.links)
        ports = [link for link in inner.links if link.kind == "port"]
        if any(link.per not in blocks for link in ports):
            return
        smallest = min((blocks[link.per] for link in ports), default=inner.cardinality)
        for distance in range(1, min(smallest, 3)):
            if not (ringed and distance in (1, inner.cardinality - 1)):
                raise InputError(
                    f"no link of level {inner.name!r} joins its members 0 and {distance}",
                    f"add one that is per {inner.name!r}",
                )

    def sheet(self) -> Sheet:
        """Levels and links, outermost first, and the device."""
        device = self.device
        return Sheet(
            f"{self.name}: {counted(self.devices, 'device')}",
            (
                ("device", device.name),
                ("memory", format_bytes(device.memory)),
                *((f"peak {dtype}", format_ops(rate)) for dtype, rate in device.peak),
                *_toll_facts(device.toll),
            ),
            ("level", "instances", "link", "bandwidth", "latency", "one per"),
            tuple(
                (
                    level.name,
                    str(level.cardinality),
                    link.name,
                    format_bandwidth(link.out),
                    format_seconds(link.latency),
                    link.per,
                )
                for level in self.levels
                for link in level.links
            ),
        )

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names from the outermost level to the innermost."""
        return tuple(level.name for level in self.levels)

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """Cardinalities from the outermost level to the innermost."""
        return tuple(level.cardinality for level in self.levels)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return math.prod(self.hierarchy)

    @property
    def wired(self) -> bool:
        """Whether the positions inside the innermost level differ: it has blocks or ring links."""
        inner = self.levels[-1]
        return bool(inner.blocks) or any(link.kind == "ring" for link in inner.links)

    def level_index(self, name: str) -> int:
        """Where a level stands, 0 being the outermost."""
        if name not in self.level_names:
            raise InputError(
                f"cluster {self.name!r} has no level {name!r}",
                f"name one of its levels: {nearest(name, self.level_names)}",
            )
        return self.level_names.index(name)

    def resized(self, cardinalities: Mapping[str, int]) -> Cluster:
        """The same machine with other cardinalities.

        >>> Cluster.named("dgx-h100").resized({"node": 2}).hierarchy
        (2, 8)
        """
        levels = list(self.levels)
        for name, cardinality in cardinalities.items():
            index = self.level_index(name)
            require_whole(cardinality, f"level {name!r} has cardinality", MAX_CARDINALITY)
            unit = math.lcm(*(size for _, size in levels[index].blocks))
            if cardinality % unit:
                blocks = " and ".join(f"{block} of {n}" for block, n in levels[index].blocks)
                raise InputError(
                    f"level {name!r} has cardinality {cardinality}, but its blocks are {blocks}",
                    f"give a multiple of {unit}",
                )
            levels[index] = msgspec.structs.replace(levels[index], cardinality=cardinality)
        return msgspec.structs.replace(self, levels=tuple(levels))

    @staticmethod
    def named(name: str, **cardinalities: int) -> Cluster:
        """A cluster of the catalogue, with cardinalities overridden by level name."""
        from meshwright.cluster.catalogue import catalogued

        return catalogued(name).resized(cardinalities)

    @staticmethod
    def load(path: str) -> Cluster:
        """A cluster from a TOML file."""
        from meshwright.cluster.toml import load_cluster

        return load_cluster(path)


def _toll_facts(toll: CommOverhead | None) -> tuple[tuple[str, str], ...]:
    if toll is None:
        return ()
    each = f"{format_seconds(toll.message)} a message, {format_bandwidth(toll.bandwidth)}"
    return (("computing lost to talking", each),)


def _refuse_port_words(link: Link, level: Level) -> None:
    """A medium that its owner's whole inside shares has one bandwidth and no ends."""
    words = {"outward": link.outward, "hub": link.hub, "ring": link.kind == "ring"}
    for word, flag in words.items():
        if flag:
            raise InputError(
                f"link {link.name!r} of level {level.name!r} is {word} and shared per {link.per!r}",
                f"name an owner at or inside level {level.name!r}, or leave the word out",
            )
    if link.out != link.into:
        raise InputError(
            f"link {link.name!r}, shared per {link.per!r}, has {link.out:g} B/s out and "
            f"{link.into:g} B/s in",
            "give one bandwidth: all that moves inside its owner shares it",
        )


def _refuse_repeats(names: Iterable[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(
            f"the {what} use the name {repeated[0]!r} more than once", "give each its own name"
        )
