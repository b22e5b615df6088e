"""What `p2_testbed.py` measures. Enters: the testbed's clusters. Leaves: networks, the programs of
each case, their predictions, and how long measuring takes. Nothing here measures.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshwright.cluster.model import Cluster
from meshwright.foundation.units import Bytes, BytesPerSecond
from meshwright.price.alpha_beta import Pricer
from meshwright.price.backend import RINGS
from meshwright.reduce.dsl import ALL_REDUCE
from meshwright.reduce.predict import PricedProgram, predict_all
from meshwright.validate.bed_rows import Case, Record, Result, cases

CLUSTERS = Path(__file__).parent.parent / "testbed" / "clusters"
PAYLOAD = Bytes(2 << 20)
SEED = 7
ROUNDS, NEAR_ROUNDS, NEAR = 2, 3, 1.5
"""All programs run twice, those within half as much again of the fastest three times more."""
MOST, BEST = 150, 20
"""Of a case with more programs a sample is measured, the predicted best among them."""
CALM = 6.0
"""Load average above which a case is measured again."""
STARTING = 4.0
"""Seconds that a network and its ranks take to come up."""


class Network(NamedTuple):
    """A shape with the rates of its links, outermost first, in Mb/s; None: not limited."""

    shape: str
    rates: tuple[float | None, ...]

    def __str__(self) -> str:
        return f"{self.shape} {'/'.join('-' if r is None else f'{r:g}' for r in self.rates)}"

    @property
    def inside(self) -> bool:
        """Whether loopbacks are limited."""
        return self.rates[-1] is not None

    @property
    def cluster(self) -> Cluster:
        """Its description, before anything is measured."""
        cluster = Cluster.load(str(CLUSTERS / f"{self.shape}.toml"))
        levels = list(cluster.levels)
        for depth, rate in enumerate(self.rates):
            if rate is not None:
                (link,) = levels[depth].links
                bandwidth = BytesPerSecond(rate * 1e6 / 8)
                # A limited loopback is one for each leaf.
                per = levels[depth - 1].name if link.name == "loopback" else link.per
                own = msgspec.structs.replace(link, out=bandwidth, into=bandwidth, per=per)
                levels[depth] = msgspec.structs.replace(levels[depth], links=(own,))
        return msgspec.structs.replace(cluster, levels=tuple(levels))


NETWORKS = {
    str(network): network
    for network in (
        *(Network(shape, (200, None)) for shape in ("2x4", "4x2", "4x4")),
        *(Network(shape, (200, 1000)) for shape in ("2x4", "4x2", "4x4")),
        Network("2x2x2", (200, 1600, None)),
        Network("2x2x2", (200, 400, None)),
    )
}


NOMINAL: Mapping[str, Cluster] = {name: network.cluster for name, network in NETWORKS.items()}


def predictions(case: Case, cluster: Cluster) -> list[PricedProgram]:
    """Every program that P² had, by predicted time."""
    priced = predict_all(case.hierarchy(cluster), Pricer(cluster, RINGS), PAYLOAD, rules="paper")
    return sorted(priced, key=lambda it: it.seconds)


def chosen(case: Case, cluster: Cluster) -> list[PricedProgram]:
    """The programs that are measured: all, or a sample with the best and AllReduce."""
    priced = predictions(case, cluster)
    if len(priced) <= MOST:
        return priced
    fixed = [it for i, it in enumerate(priced) if i < BEST or it.program == ALL_REDUCE]
    rest = [it for it in priced if it not in fixed]
    return fixed + random.Random(f"{SEED}/{case.key}").sample(rest, MOST - len(fixed))


def expected_seconds(case: Case, cluster: Cluster) -> float:
    """How long it takes to measure a case."""
    seconds = [float(it.seconds) for it in chosen(case, cluster)]
    near = [it for it in seconds if it <= NEAR * min(seconds)]
    runs = ROUNDS * len(seconds) + NEAR_ROUNDS * len(near)
    return STARTING + ROUNDS * sum(seconds) + NEAR_ROUNDS * sum(near) + 0.03 * runs


def waiting(records: Sequence[Record]) -> list[Case]:
    """The cases to measure, in the seeded order; then those measured under load, worst first."""
    loads: dict[object, list[float]] = defaultdict(list)
    for it in records:
        if isinstance(it, Result):
            loads[it.case] += [statistics.median(it.load)]
    every = [case for name, cluster in NOMINAL.items() for case in cases(name, cluster)]
    random.Random(SEED).shuffle(every)
    again = [case for case in every if loads[case.key] and min(loads[case.key]) > CALM]
    again.sort(key=lambda case: -min(loads[case.key]))
    return [case for case in every if not loads[case.key]] + again
