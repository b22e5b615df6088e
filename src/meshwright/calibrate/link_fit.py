"""Link bandwidths and latencies (alpha-beta parameters) fitted to measured transfers. Enters: a
described `Cluster`, and how long transfers between its devices took. Leaves: the same cluster with
the rates and latencies that were found, and a sentence for whatever contradicts its description of
who shares what.

    rate of a link = what crossed it when all that share it used it at once, or more if more was
                     seen to cross it on the way to outer levels
    latency of the links of a level = latency between two instances of it - that of outward links
                                      of the levels inside

No link is faster than it was seen to be and none slower, so if the description is true, all that
was measured is predicted as it was: the link that set the pace has just that rate. A link with two
rates keeps their ratio: what is sent shows the slower direction only. How anything is measured is
not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from meshwright.base.quantities import BytesPerSecond, Seconds, format_bandwidth
from meshwright.calibrate.probes import (
    FittedLine,
    Pairs,
    busiest,
    everyone,
    filling,
    is_innermost_plain,
    lines,
    outermost,
    pace,
    seconds_per_byte,
)
from meshwright.cluster.cluster import Cluster, CommOverhead, Level, Link

CONTRADICTION = 1.5
"""How much slower than the links tell transfers must be to say so."""

SOURCE = "Links measured "
"""What the source of a measured cluster begins with, and what comes before that of all else."""
ELSE = " All else: "


class LinkMeasurements(NamedTuple):
    """What was measured."""

    latencies: tuple[Seconds | None, ...]
    """Of a small message, by level; None where there is nobody to send to."""
    paces: Mapping[Pairs, float]
    """Seconds for a byte of each of some transfers at once."""
    toll: CommOverhead | None = None
    """What talking takes of computing, where it was measured."""


def probes(cluster: Cluster) -> tuple[Pairs, ...]:
    """All transfers to measure, each once: for every link one pair and all that share it, and for
    every level everybody.
    """
    distinct: dict[Pairs, None] = {}
    for line in lines(cluster):
        pairs = filling(cluster, line)
        distinct |= dict.fromkeys(probe for probe in (pairs[:1], pairs) if probe)
    levels = (u for u, size in enumerate(cluster.hierarchy) if size > 1)
    return tuple(distinct | dict.fromkeys(everyone(cluster, level) for level in levels))


def fitted(cluster: Cluster, measurements: LinkMeasurements, how: str) -> Cluster:
    """The cluster with the figures that were found; `how` they were ends up in its source."""
    levels = list(cluster.levels)
    outward = 0.0
    for depth in reversed(range(len(levels))):
        measured = measurements.latencies[depth]
        latency = None if measured is None else max(0.0, measured - outward)
        levels[depth] = _fitted_level(cluster, depth, measurements, latency)
        outward += sum(link.latency for link in levels[depth].links if link.outward)
    before = cluster.source.split(ELSE, 1)[-1] if _measured(cluster) else cluster.source
    source = f"{SOURCE}{how}.{ELSE}{before}" if before else f"{SOURCE}{how}."
    device = msgspec.structs.replace(cluster.device, toll=measurements.toll or cluster.device.toll)
    return msgspec.structs.replace(cluster, levels=tuple(levels), device=device, source=source)


def _measured(cluster: Cluster) -> bool:
    """Whether its links were measured before."""
    return cluster.source.startswith(SOURCE)


def _fitted_level(
    cluster: Cluster, depth: int, measurements: LinkMeasurements, latency: float | None
) -> Level:
    level = cluster.levels[depth]
    described = sum(link.latency for link in level.links)
    links: list[Link] = []
    for number, link in enumerate(level.links):
        line = FittedLine(depth, number)
        if not filling(cluster, line):
            links.append(link)
            continue
        factor = _seen(cluster, line, measurements)
        share = link.latency / described if described else float(number == 0)
        links.append(_fitted_link(link, factor, None if latency is None else latency * share))
    return msgspec.structs.replace(level, links=tuple(links))


def _seen(cluster: Cluster, line: FittedLine, measurements: LinkMeasurements) -> float:
    """The most that was seen to cross a link, as a multiple of what is described."""
    link, sharing = line.of(cluster), filling(cluster, line)
    telling = [
        (busiest(cluster, pairs).get(line), spent)
        for pairs, spent in measurements.paces.items()
        if pairs == sharing or outermost(cluster, *pairs[0]) < line.level
    ]
    return max(seconds_per_byte(link, load) / spent for load, spent in telling if load is not None)


def _fitted_link(link: Link, factor: float, latency: float | None) -> Link:
    return msgspec.structs.replace(
        link,
        out=BytesPerSecond(rounded(link.out * factor)),
        into=BytesPerSecond(rounded(link.into * factor)),
        latency=link.latency if latency is None else Seconds(rounded(latency)),
    )


def rounded(value: float) -> float:
    """Four digits: more were never measured."""
    return float(f"{value:.4g}")


def contradictions(measured: Cluster, measurements: LinkMeasurements) -> Iterator[str]:
    """Sentences about what the description of a cluster, with its measured rates, does not tell."""
    for line in lines(measured):
        pairs = filling(measured, line)
        if not pairs:
            yield _unmeasured(measured, line)
        elif len(pairs) > 1 and _slower(measured, measurements, pairs[:1]):
            yield _alone(measured, line, measurements, pairs)
    for depth, level in enumerate(measured.levels):
        pairs = everyone(measured, depth)
        if level.cardinality > 1 and _slower(measured, measurements, pairs):
            yield _together(measured, depth, measurements, pairs)


def _slower(measured: Cluster, measurements: LinkMeasurements, pairs: Pairs) -> bool:
    expected = pace(measured, pairs)
    return 0 < CONTRADICTION * expected < measurements.paces[pairs]


def _total(pairs: Pairs, seconds: float) -> str:
    return format_bandwidth(len(pairs) / seconds)


def _unmeasured(measured: Cluster, line: FittedLine) -> str:
    link = line.of(measured)
    inner = line.level == len(measured.levels) - 1
    wired = inner and not is_innermost_plain(measured)
    why = "its level has ring or hub links" if wired else "nothing on this cluster crosses it"
    return f"link {link.name!r} keeps its described figures: {why}."


def _alone(
    measured: Cluster, line: FittedLine, measurements: LinkMeasurements, pairs: Pairs
) -> str:
    link = line.of(measured)
    return (
        f"all {len(pairs)} transfers that share link {link.name!r} (per {link.per!r}) move "
        f"{_total(pairs, measurements.paces[pairs])} together, but one alone only "
        f"{_total(pairs[:1], measurements.paces[pairs[:1]])}: either they do not share one link, "
        "or one pair cannot fill it; correct 'per' if each has its own."
    )


def _together(measured: Cluster, depth: int, measurements: LinkMeasurements, pairs: Pairs) -> str:
    level = measured.levels[depth]
    named = " and ".join(f"{link.name!r} (per {link.per!r})" for link in level.links)
    return (
        f"all devices that send to another {level.name} at once move "
        f"{_total(pairs, measurements.paces[pairs])}, but {named} would carry "
        f"{_total(pairs, pace(measured, pairs))}: they share something that the description does "
        "not tell; correct 'per', or describe what they share."
    )
