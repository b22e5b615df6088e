"""Testbed cases and records: P² placements measured on a real network, and its calibration. Enters:
a cluster, or the text of a results file. Leaves: cases, records, and the cluster as a few simple
measurements describe it. Nothing here measures, and nothing says how good a prediction was.

What is fitted, for each network, from AllReduces over the members of one level, all the rest of the
machine idle (the innermost level: in all its containers at once, because ranks share the cores):
    latency of a hop      = time of a few bytes / 2 (n - 1)
    bandwidth of a link   = bytes that cross it / (time of the payload - time of a few bytes)
No result of a case is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from meshwright.base.quantities import Bytes, BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement, placements

Key = tuple[str, str, str, str]
"""A case as a results file names it: network, axes, those reduced over, matrix."""

MIDDLE = 2
"""Size of the axis that the paper's three-axis configurations do not reduce over."""


class Case(NamedTuple):
    """A placement and the axes that are summed over, on one network."""

    network: str
    placement: Placement
    reduce: tuple[str, ...]

    @property
    def configuration(self) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
        """What all placements of the same axes share."""
        return self.network, tuple(axis.size for axis in self.placement.axes), self.reduce

    @property
    def key(self) -> Key:
        """The case as a results file names it."""
        axes = ",".join(map(str, self.placement.axes))
        return self.network, axes, "+".join(self.reduce), str(self.placement)

    def hierarchy(self, cluster: Cluster) -> Hierarchy:
        """The levels that its programs name."""
        return Hierarchy(self.placement, cluster.level_names, self.reduce)


class LevelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """AllReduces over the members of one level."""

    level: str
    small_s: Seconds
    """Of a few bytes."""
    large_s: Seconds
    """Of the payload."""


class BedCalibration(msgspec.Struct, frozen=True, kw_only=True, tag="calibration"):
    """What was measured of a network before its cases, outermost level first."""

    network: str
    payload: Bytes
    levels: tuple[LevelTimes, ...]
    load: float
    """The machine's load average."""


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """A program's repeated times, and the load average at each."""

    network: str
    axes: str
    reduce: str
    matrix: str
    program: str
    payload: Bytes
    seconds: tuple[Seconds, ...]
    load: tuple[float, ...]

    @property
    def case(self) -> Key:
        """The case it belongs to, as `Case.key`."""
        return self.network, self.axes, self.reduce, self.matrix


Record = BedCalibration | Result


def read_records(text: str) -> list[Record]:
    """The records of a results file, one a line."""
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in text.splitlines() if line]


def write_records(records: Iterable[Record]) -> str:
    """The lines of a results file."""
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def cases(network: str, cluster: Cluster) -> Iterator[Case]:
    """All placements of the paper's configurations at the size of a cluster.

    >>> every = list(cases("two", Cluster.named("gcp-a100", node=2, gpu=2)))
    >>> [(str(case.placement), case.reduce) for case in every]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('[[2 2]]', ('a',)), ('[[1 2] [2 1]]', ('a',)), ('[[2 1] [1 2]]', ('a',)),
     ('[[1 2] [2 1]]', ('b',)), ('[[2 1] [1 2]]', ('b',))]
    """
    for sizes, reduce in _configurations(cluster.devices):
        axes = tuple(Axis(name, size) for name, size in zip("abc", sizes, strict=False))
        for placement in placements(cluster, axes):
            yield Case(network, placement, reduce)


def _configurations(devices: int) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """One axis; every split into two, reduced over either; three, reduced over the outer two."""
    yield (devices,), ("a",)
    for size in _parts(devices):
        for reduced in "ab":
            yield (size, devices // size), (reduced,)
    for size in _parts(devices // MIDDLE):
        yield (size, MIDDLE, devices // MIDDLE // size), ("a", "c")


def _parts(whole: int) -> list[int]:
    return [size for size in range(2, whole) if whole % size == 0]


def calibrated(cluster: Cluster, calibration: BedCalibration) -> Cluster:
    """The cluster with the latencies and bandwidths that were measured.

    Every level has one link; what crosses the links of a level also crosses the outward links
    inside it, whose latency is then counted there.
    """
    times = {level.level: level for level in calibration.levels}
    levels: list[Level] = []
    for depth in reversed(range(len(cluster.levels))):
        level = cluster.levels[depth]
        (link,) = level.links
        passed = sum(inner.latency for below in levels for inner in below.links if inner.outward)
        fitted = _fitted(cluster, depth, link, times[level.name], calibration.payload, passed)
        levels.insert(0, msgspec.structs.replace(level, links=(fitted,)))
    return msgspec.structs.replace(cluster, levels=tuple(levels))


def _fitted(
    cluster: Cluster, depth: int, link: Link, times: LevelTimes, payload: int, passed: float
) -> Link:
    hops = 2 * (cluster.levels[depth].cardinality - 1)
    crossing = hops * payload / cluster.levels[depth].cardinality
    owner = cluster.owner_level(link.per)
    if owner < depth:
        # One medium carries what every member of every container sends.
        crossing *= math.prod(level.cardinality for level in cluster.levels[owner + 1 :])
    rate = BytesPerSecond(crossing / (times.large_s - times.small_s))
    latency = Seconds(max(0.0, times.small_s / hops - passed))
    return msgspec.structs.replace(link, out=rate, into=rate, latency=latency)


def described(clusters: Mapping[str, Cluster], records: Iterable[Record]) -> dict[str, Cluster]:
    """The networks that were calibrated, each by its last calibration."""
    calibrations = [record for record in records if isinstance(record, BedCalibration)]
    return {it.network: calibrated(clusters[it.network], it) for it in calibrations}
