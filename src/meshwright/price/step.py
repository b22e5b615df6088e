"""The price of one collective. Enters: a cluster, a backend, an algorithm, a pattern of groups.
Leaves: seconds as a straight line in the bytes, and the link that sets the slope.

    time(size) = launch + Σ over phases and their rounds of
                 [ rounds · Σ_u hops_u · latency_u  +  size · share · max over links of load ]
so that a whole sweep over sizes costs no more than one price.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.cluster.model import Cluster
from meshwright.foundation.units import Seconds
from meshwright.price.backend import NCCL, Algorithm, Backend, Phase
from meshwright.price.collective import Collective
from meshwright.price.flows import hops, rounds
from meshwright.price.load import latencies, loads
from meshwright.price.pattern import Pattern, members, normal


class Line(NamedTuple):
    """Seconds as a function of the bytes each member holds before the collective."""

    fixed: Seconds
    per_byte: float
    link: str
    """The link that sets the slope."""

    def at(self, held: float) -> Seconds:
        """The time for `held` bytes on each member."""
        return Seconds(self.fixed + held * self.per_byte)


class Pricer:
    """Prices collectives on one cluster with one backend and algorithm, each pattern once."""

    def __init__(
        self, cluster: Cluster, backend: Backend = NCCL, algorithm: Algorithm = "ring"
    ) -> None:
        self.cluster, self.backend, self.algorithm = cluster, backend, algorithm
        self._networked = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
        self._lines: dict[tuple[Collective, Pattern], tuple[Line, ...]] = {}

    def signature(self, pattern: Pattern) -> Pattern:
        """The pattern with all that cannot change a price left out."""
        inner = pattern[-1] if self.cluster.wired else normal(pattern[-1])
        return (*map(normal, pattern[:-1]), inner)

    def lines(self, collective: Collective, pattern: Pattern) -> tuple[Line, ...]:
        """The price by each algorithm that may run; the cheapest one will."""
        key = (collective, self.signature(pattern))
        if key not in self._lines:
            choices = self.backend.phases(collective, self.algorithm)
            self._lines[key] = tuple(self._line(collective, phases, key[1]) for phases in choices)
        return self._lines[key]

    def price(self, collective: Collective, pattern: Pattern, held: float) -> tuple[Seconds, str]:
        """Seconds for `held` bytes on each member before the collective, and the busiest link."""
        line = min(self.lines(collective, pattern), key=lambda line: line.at(held))
        return line.at(held), line.link

    def _line(self, collective: Collective, phases: tuple[Phase, ...], pattern: Pattern) -> Line:
        sizes = tuple(members(digits) for digits in pattern)
        count = math.prod(sizes)
        fixed, slopes = float(self.backend.launch), []
        for phase in phases:
            moves = list(rounds(phase.shape, sizes, self._networked))
            latency = latencies(self.cluster, pattern, moves[0])
            fixed += phase.rounds * sum(
                hops(phase.shape, sizes, u, self._networked) * latency[u] for u in range(len(sizes))
            )
            share = collective.size(phase.share(count), count)
            for moved in moves:
                busiest = max(
                    loads(self.cluster, pattern, moved), key=lambda it: it.seconds_per_byte
                )
                slopes.append((busiest.seconds_per_byte * share, busiest.link))
        return Line(Seconds(fixed), sum(slope for slope, _ in slopes), max(slopes)[1])
