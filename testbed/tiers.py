"""Which clusters a tree of rate-limited cables can stand for. Enters: a `Cluster`. Leaves: its
`Tier`s, outermost first, or a sentence that says what of it cannot be emulated. Nothing here knows
how a cable is laid.

The mapping: the ports of a level (links `per` the level itself) become one cable between each
instance of the level and the switch above it. Ports of one owner are crossed one after the other,
so the cable has the rate of the slowest, direction by direction. What leaves an instance of an
outer level passes the cables of all levels inside it, which is what `outward` says.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import BytesPerSecond, Seconds, format_bandwidth, format_seconds
from meshwright.cluster.cluster import Cluster, Level, Link

FASTEST = BytesPerSecond(5e8)
"""Faster ones did not hold their rate on two cores: a message at 10 Gb/s ran at a third to twice
of it."""

SLOWEST = BytesPerSecond(1e6)
"""Below it the bucket, which holds 128 KiB, is more than an eighth of a second of traffic."""

LONGEST = Seconds(1e-3)
"""What gloo over namespaces takes for a message by itself; more cannot be added (no netem)."""

MOST_RANKS = 64


class Tier(NamedTuple):
    """A level as cables: one above each of its instances."""

    level: str
    cardinality: int
    out: BytesPerSecond
    into: BytesPerSecond


def tiers(cluster: Cluster) -> tuple[Tier, ...]:
    """The tiers of the levels outside the innermost one.

    >>> from meshwright import Cluster
    >>> tiers(Cluster.load("testbed/clusters/2x4.toml"))
    (Tier(level='node', cardinality=2, out=25000000.0, into=25000000.0),)
    """
    outer = cluster.levels[:-1]
    if not outer:
        raise InputError(
            f"cluster {cluster.name!r} has one level, {cluster.levels[0].name!r}, and no network",
            "run local ranks instead, or add a level above it",
        )
    if cluster.wired:
        raise InputError(
            f"the innermost level {cluster.levels[-1].name!r} has blocks or ring links, which a "
            "loopback is not",
            "leave them out",
        )
    if cluster.devices > MOST_RANKS:
        raise InputError(
            f"cluster {cluster.name!r} has {cluster.devices} devices, a rank each",
            f"give at most {MOST_RANKS}",
        )
    for link in cluster.levels[-1].links:
        _refuse_latency(link)
        if link.outward:
            raise InputError(
                f"link {link.name!r} of the innermost level is outward, but what leaves a leaf "
                "does not cross its loopback",
                "leave the word out",
            )
    return tuple(_tier(level, outermost=depth == 0) for depth, level in enumerate(outer))


def inside_rate(cluster: Cluster) -> BytesPerSecond:
    """The rate of the loopback of a leaf, for a cluster whose leaves have one medium inside.

    A loopback is one medium for all ranks of a leaf, so ports of single devices cannot be asked
    of it.
    """
    inner, leaf = cluster.levels[-1], cluster.level_names[-2]
    for link in inner.links:
        if link.per != leaf:
            raise InputError(
                f"link {link.name!r} of level {inner.name!r} is per {link.per!r}, but a loopback "
                f"is shared by all of a {leaf}",
                f"make it per {leaf!r}, or leave the loopback at its own rate",
            )
        _refuse_rate(link, link.out)
    return min(link.out for link in inner.links)


def _tier(level: Level, *, outermost: bool) -> Tier:
    for link in level.links:
        _refuse_sharing(link, level, outermost=outermost)
        for rate in (link.out, link.into):
            _refuse_rate(link, rate)
        _refuse_latency(link)
    out, into = min(link.out for link in level.links), min(link.into for link in level.links)
    return Tier(level.name, level.cardinality, out, into)


def _refuse_sharing(link: Link, level: Level, *, outermost: bool) -> None:
    if link.per != level.name:
        raise InputError(
            f"link {link.name!r} of level {level.name!r} is per {link.per!r}, but a cable belongs "
            f"to one {level.name}",
            f"make it per {level.name!r}",
        )
    if link.duplex == "half":
        raise InputError(
            f"link {link.name!r} is half-duplex, but cables are limited direction by direction",
            'give duplex = "full"',
        )
    if not outermost and not link.outward:
        raise InputError(
            f"link {link.name!r} of level {level.name!r} is not outward, but in a tree what leaves "
            f"the level above crosses it too",
            "say outward = true",
        )


def _refuse_latency(link: Link) -> None:
    if link.latency > LONGEST:
        raise InputError(
            f"link {link.name!r} has a latency of {format_seconds(link.latency)}, and latency "
            "cannot be emulated",
            f"give at most {format_seconds(LONGEST)}, which messages take here by themselves",
        )


def _refuse_rate(link: Link, rate: BytesPerSecond) -> None:
    if not SLOWEST <= rate <= FASTEST:
        raise InputError(
            f"link {link.name!r} has {format_bandwidth(rate)}, which a cable here cannot hold",
            f"give {format_bandwidth(SLOWEST)} to {format_bandwidth(FASTEST)}",
        )
