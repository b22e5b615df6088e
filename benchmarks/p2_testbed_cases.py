"""What `p2_testbed.py` measures. Enters: the testbed's clusters. Leaves: campaigns with their
networks, the programs of each case, their predictions, and how long measuring takes. Nothing here
measures.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, BytesPerSecond
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import ALL_REDUCE
from meshwright.collectives.predict import PricedProgram, predict_all
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, RINGS, Algorithm, Backend
from meshwright.validate.bed_rows import Case, Record, Result, cases

CLUSTERS = Path(__file__).parent.parent / "testbed" / "clusters"
SEED = 7
NEAR = 1.5
"""Programs within half as much again of the fastest are run more often."""


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
                limited = msgspec.structs.replace(link, out=bandwidth, into=bandwidth, per=per)
                levels[depth] = msgspec.structs.replace(levels[depth], links=(limited,))
        return msgspec.structs.replace(cluster, levels=tuple(levels))


class Campaign(NamedTuple):
    """What is asked of which library, on which networks, and how often."""

    backend: Backend
    algorithm: Algorithm
    clusters: Mapping[str, Cluster]
    """Each network's description, before anything is measured."""
    inside: frozenset[str]
    """The networks whose loopbacks are limited."""
    results: str
    """The file of its records."""
    payload: Bytes
    rounds: int
    """How often every program runs."""
    near_rounds: int
    """How often those near the fastest run beyond that."""
    most: int
    """Of a case with more programs a sample is measured."""
    best: int
    """How many of the predicted best are in such a sample."""
    starting: float
    """Seconds that a network and its ranks take to come up."""
    calm: float
    """Load average above which a case is measured again."""
    gpus: int = 0
    environment: Mapping[str, str] = {}
    together: bool = False
    """Whether the cases of a network share their ranks, which takes a communicator for each group
    of any of them; else each has ranks of its own."""


def gloo() -> Campaign:
    """Rings and chains over gloo."""
    networks = (
        *(Network(shape, (200, None)) for shape in ("2x4", "4x2", "4x4")),
        *(Network(shape, (200, 1000)) for shape in ("2x4", "4x2", "4x4")),
        Network("2x2x2", (200, 1600, None)),
        Network("2x2x2", (200, 400, None)),
    )
    return Campaign(
        RINGS,
        "ring",
        {str(it): it.cluster for it in networks},
        frozenset(str(it) for it in networks if it.inside),
        results="p2_testbed.jsonl",
        payload=Bytes(2 << 20),
        rounds=2,
        near_rounds=3,
        most=150,
        best=20,
        starting=4.0,
        calm=6.0,
    )


def nccl(algorithm: Algorithm) -> Campaign:
    """NCCL ranks that share one GPU, with AllReduces in a ring or along a tree.

    Each rank is a machine of its own to NCCL.
    """
    networks = (
        *(Network(shape, (800, 4000)) for shape in ("2x2", "2x4", "4x2")),
        Network("2x2x2", (800, 3200, 4000)),
    )
    clusters = {str(it): it.cluster for it in networks}
    return Campaign(
        NCCL,
        algorithm,
        {
            name: msgspec.structs.replace(cluster, machine=cluster.level_names[-1])
            for name, cluster in clusters.items()
        },
        frozenset(str(it) for it in networks if it.inside),
        results=f"p2_testbed_nccl_{algorithm}.jsonl",
        payload=Bytes(4 << 20),
        rounds=3,
        near_rounds=0,
        most=24,
        best=10,
        starting=8.0,
        calm=math.inf,
        gpus=1,
        environment=nccl_environment(algorithm),
        together=True,
    )


def nccl_environment(algorithm: Algorithm) -> dict[str, str]:
    """What NCCL is told.

    Two channels, one for each tree, so that many ranks fit on a GPU. The protocol is that of large
    messages, and buffers are as much smaller than by default (4 MiB) as messages here are smaller
    than those that networks are built for, so that what passes through several members does so in
    small pieces here too.
    """
    return {
        "NCCL_ALGO": f"ring;allreduce:{algorithm}",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "2",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_BUFFSIZE": str(512 << 10),
    }


def campaign_named(backend: str, algorithm: str) -> Campaign:
    """The campaign that command-line words ask for."""
    match backend, algorithm:
        case "gloo", "ring":
            return gloo()
        case "nccl", "ring":
            return nccl("ring")
        case "nccl", "tree":
            return nccl("tree")
        case _:
            raise InputError(
                f"there is no campaign of {backend!r} with algorithm {algorithm!r}",
                "give gloo with ring, or nccl with ring or tree",
            )


def predictions(campaign: Campaign, case: Case, cluster: Cluster) -> list[PricedProgram]:
    """Every program that P² had, by predicted time."""
    pricer = Pricer(cluster, campaign.backend, campaign.algorithm)
    priced = predict_all(case.hierarchy(cluster), pricer, campaign.payload, rules="paper")
    return sorted(priced, key=lambda it: it.seconds)


def chosen(campaign: Campaign, case: Case, cluster: Cluster) -> list[PricedProgram]:
    """The programs that are measured: all, or a sample with the best and AllReduce."""
    priced = predictions(campaign, case, cluster)
    if len(priced) <= campaign.most:
        return priced
    fixed = [it for i, it in enumerate(priced) if i < campaign.best or it.program == ALL_REDUCE]
    rest = [it for it in priced if it not in fixed]
    seeded = random.Random(f"{SEED}/{case.key}")
    return fixed + seeded.sample(rest, campaign.most - len(fixed))


def expected_seconds(campaign: Campaign, programs: Sequence[PricedProgram]) -> float:
    """How long it takes to measure a case's programs, once its ranks are there."""
    seconds = [float(it.seconds) for it in programs]
    near = [it for it in seconds if it <= NEAR * min(seconds)]
    runs = campaign.rounds * len(seconds) + campaign.near_rounds * len(near)
    return campaign.rounds * sum(seconds) + campaign.near_rounds * sum(near) + 0.03 * runs


def waiting(campaign: Campaign, records: Sequence[Record]) -> list[Case]:
    """The cases to measure, in the seeded order; then those measured under load, worst first."""
    loads: dict[object, list[float]] = defaultdict(list)
    for it in records:
        if isinstance(it, Result):
            loads[it.case] += [statistics.median(it.load)]
    every = [case for name, cluster in campaign.clusters.items() for case in cases(name, cluster)]
    random.Random(SEED).shuffle(every)
    again = [case for case in every if loads[case.key] and min(loads[case.key]) > campaign.calm]
    again.sort(key=lambda case: -min(loads[case.key]))
    return [case for case in every if not loads[case.key]] + again


def sessions(campaign: Campaign, left: Sequence[Case]) -> list[list[Case]]:
    """Cases that share their ranks, in the order of the first of each."""
    if not campaign.together:
        return [[case] for case in left]
    by_network: dict[str, list[Case]] = defaultdict(list)
    for case in left:
        by_network[case.network].append(case)
    return list(by_network.values())
