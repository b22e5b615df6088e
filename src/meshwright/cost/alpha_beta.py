"""The alpha-beta model of a collective (Hockney 1994; Thakur et al. 2005). Enters: a cluster, a
backend, an algorithm, a pattern of groups. Leaves: seconds as a straight line in the bytes, and the
link that sets the slope.

    time(size) = launch + Σ over phases and their rounds of
                 [ times round · latency  +  size · share · max over links of load ]
so that a whole sweep over sizes costs no more than one price. Where members send on segments of so
many bytes, the first of them passes all ports of the way before the last member has any:
                 + min(segment, size · share) · (Σ over hops of their ports' load - the largest)
which is two lines, of which the cheaper one holds. A medium is no port: it is busy all the while.

Where talking takes a toll of computing (`Toll`), a member computes that much less, by
    toll(size) = Σ over phases and their rounds of [ messages · toll of each  +  bytes / bandwidth ]
and the collective takes no less than that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import ALGORITHMS, NCCL, Algorithm, Backend, Phase
from meshwright.cost.collective import Operation
from meshwright.cost.flows import Round, busiest_part, rounds
from meshwright.cost.link_load import latency, loads
from meshwright.cost.pattern import Pattern, members, normal


class LostBandwidth(NamedTuple):
    """Seconds of computing, as a function of the bytes each member holds."""

    fixed: float = 0.0
    per_byte: float = 0.0


class CostLine(NamedTuple):
    """Seconds as a function of the bytes each member holds before the collective."""

    fixed: Seconds
    per_byte: float
    link: str
    """The link that sets the slope."""
    busy: tuple[tuple[tuple[int, str], float], ...]
    """Seconds for every byte on each link, by its level and name."""
    lost: LostBandwidth = LostBandwidth()
    """What the busiest member cannot compute meanwhile."""

    def at(self, held: float) -> Seconds:
        """The time for `held` bytes on each member."""
        return Seconds(self.fixed + held * self.per_byte)


def cheapest_line(lines: tuple[CostLine, ...], held: float) -> CostLine:
    """The algorithm that is fastest for so many bytes."""
    return min(lines, key=lambda line: line.at(held))


class Pricer:
    """Prices collectives on one cluster with one backend and algorithm, each pattern once."""

    def __init__(
        self, cluster: Cluster, backend: Backend = NCCL, algorithm: Algorithm = "ring"
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise InputError(f"the algorithm is {algorithm!r}", nearest(algorithm, ALGORITHMS))
        self.cluster, self.backend, self.algorithm = cluster, backend, algorithm
        self._networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
        self._lines: dict[tuple[Operation, Pattern], tuple[CostLine, ...]] = {}

    def signature(self, pattern: Pattern) -> Pattern:
        """The pattern with all that cannot change a price left out."""
        inner = pattern[-1] if self.cluster.wired else normal(pattern[-1])
        return (*map(normal, pattern[:-1]), inner)

    def lines(self, operation: Operation, pattern: Pattern) -> tuple[CostLine, ...]:
        """The price by each algorithm that may run; the cheapest one will."""
        key = (operation, self.signature(pattern))
        if key not in self._lines:
            choices = self.backend.phases(operation, self.algorithm)
            self._lines[key] = tuple(
                self._line(operation, phases, key[1], whole)
                for phases in choices
                for whole in ((False, True) if any(it.segment for it in phases) else (False,))
            )
        return self._lines[key]

    def _line(
        self, operation: Operation, phases: tuple[Phase, ...], pattern: Pattern, whole: bool
    ) -> CostLine:
        """The price by one algorithm; with `whole`, for sizes below a segment."""
        sizes = tuple(members(digits) for digits in pattern)
        count = math.prod(sizes)
        fixed, slopes = float(self.backend.launch), []
        busy: dict[tuple[int, str], float] = defaultdict(float)
        for phase in phases:
            share = operation.size(phase.share(count), count)
            for moved in rounds(phase.shape, sizes, self._networked):
                fixed += phase.rounds * latency(self.cluster, pattern, moved)
                busiest: dict[tuple[int, str], float] = {}
                for load in loads(self.cluster, pattern, moved):
                    place = (load.level, load.link)
                    busiest[place] = max(busiest.get(place, 0.0), load.seconds_per_byte * share)
                slope, (_, link) = max((slope, place) for place, slope in busiest.items())
                waits = self._waits(busiest, moved) if phase.segment else 0.0
                fixed += 0.0 if whole else phase.segment / share * waits
                slopes.append((slope + waits if whole else slope, link))
                for place, seconds in busiest.items():
                    busy[place] += seconds
        lost = self._lost(operation, phases, sizes)
        return CostLine(
            Seconds(max(fixed, lost.fixed)),
            max(sum(slope for slope, _ in slopes), lost.per_byte),
            max(slopes)[1],
            tuple(sorted(busy.items())),
            lost,
        )

    def _lost(
        self, operation: Operation, phases: tuple[Phase, ...], sizes: tuple[int, ...]
    ) -> LostBandwidth:
        """What talking takes of computing."""
        toll, count = self.cluster.device.toll, math.prod(sizes)
        if toll is None:
            return LostBandwidth()
        fixed, per_byte = 0.0, 0.0
        for phase in phases:
            share, part = phase.share(count), busiest_part(phase.shape, count)
            often = sum(1 for _ in rounds(phase.shape, sizes, self._networked))
            fixed += often * phase.rounds * part.messages * toll.message
            per_byte += often * part.transfers * operation.size(share, count) / toll.bandwidth
        return LostBandwidth(fixed, per_byte)

    def _waits(self, busiest: Mapping[tuple[int, str], float], moved: Round) -> float:
        """Seconds for every byte of a segment that goes through the ports one after the other."""
        ports = [0.0] * len(moved.hops)
        for depth, level in enumerate(self.cluster.levels):
            for link in level.links:
                if self.cluster.owner_level(link.per) >= depth:
                    seconds = busiest.get((depth, link.name), 0.0)
                    for u in range(depth + 1):
                        if (u == depth or link.outward) and moved.hops[u]:
                            ports[u] = max(ports[u], seconds)
        return sum(hops * wait for hops, wait in zip(moved.hops, ports, strict=True)) - max(ports)
