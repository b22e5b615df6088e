"""P² on a real network: every program of every placement, on the testbed, against its prediction.

    sudo python benchmarks/p2_testbed.py                 goes on where the results file ends
    sudo python benchmarks/p2_testbed.py --budget 10min   a fair sample that fits
    python benchmarks/p2_testbed.py --only-summary       the figures of what is there

Enters: nothing but the machine (root, iproute2). Leaves: lines in `p2_testbed.jsonl`, one for each
program, appended case by case, and the figures. Cases come in a seeded random order, so that
wherever the campaign is cut, what is there is a fair sample.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from meshwright.cli.console import new_console  # noqa: E402
from meshwright.cluster.model import Cluster  # noqa: E402
from meshwright.foundation.units import (  # noqa: E402
    Bytes,
    BytesPerSecond,
    Seconds,
    format_bandwidth,
    format_seconds,
    parse_seconds,
)
from meshwright.price.backend import RINGS  # noqa: E402
from meshwright.price.pattern import Digit, Use, groups  # noqa: E402
from meshwright.price.step import Pricer  # noqa: E402
from meshwright.reduce.dsl import ALL_REDUCE, Program  # noqa: E402
from meshwright.reduce.lower import Groups, lower, reduction_groups  # noqa: E402
from meshwright.reduce.predict import PricedProgram, predict_all  # noqa: E402
from meshwright.report.tables import new_table, table_of_errors, table_of_gains  # noqa: E402
from meshwright.run.ranks import RankError  # noqa: E402
from meshwright.validate.bed_rows import (  # noqa: E402
    Calibration,
    Case,
    LevelTimes,
    Record,
    Result,
    cases,
    described,
    read_records,
    write_records,
)
from meshwright.validate.bed_summary import BedSummary, summarize_bed, timings  # noqa: E402
from p2_testbed_ranks import Times, time_levels, time_programs  # noqa: E402
from testbed import Testbed  # noqa: E402

RESULTS = ROOT / "benchmarks" / "p2_testbed.jsonl"
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
        cluster = Cluster.load(str(ROOT / "testbed" / "clusters" / f"{self.shape}.toml"))
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


@contextmanager
def running(name: str) -> Iterator[Testbed]:
    """A network whose ranks go before all else on this machine, all their threads alike.

    They inherit it from the server that forks them, which inherits it from us. Without it, a step
    inside a node takes 4 to 12 ms on a busy machine instead of 2.3 to 2.8.
    """
    network = NETWORKS[name]
    with Testbed(network.cluster, inside=network.inside) as bed:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            yield bed
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def calibrate(name: str) -> Calibration:
    """The simple measurements of a network."""
    cluster = NETWORKS[name].cluster
    with running(name) as bed:
        found = bed.run(time_levels, level_groups(cluster), PAYLOAD // 4, 5)[0]
    times = cast(Sequence[tuple[float, float]], found)
    return Calibration(
        network=name,
        payload=PAYLOAD,
        load=round(os.getloadavg()[0], 2),
        levels=tuple(
            LevelTimes(level=level, small_s=Seconds(small), large_s=Seconds(large))
            for level, (small, large) in zip(cluster.level_names, times, strict=True)
        ),
    )


def level_groups(cluster: Cluster) -> list[Groups]:
    """For each level one group of its members; of the innermost, all of them at once."""
    found = []
    for own, level in enumerate(cluster.levels):
        rest = Use.EVERY if own == len(cluster.levels) - 1 else Use.FIRST
        uses = [Use.MEMBER if it is level else rest for it in cluster.levels]
        pattern = tuple(
            (Digit(it.cardinality, use),) for it, use in zip(cluster.levels, uses, strict=True)
        )
        found.append(tuple(groups(pattern)))
    return found


def measure(case: Case, programs: Sequence[Program]) -> list[Result]:
    """The times of a case's programs."""
    hierarchy = case.hierarchy(NETWORKS[case.network].cluster)
    lowered = [lower(hierarchy, program) for program in programs]
    settings = (reduction_groups(hierarchy), PAYLOAD // 4, ROUNDS, NEAR_ROUNDS, NEAR, str(case.key))
    with running(case.network) as bed:
        found = bed.run(time_programs, lowered, *settings, timeout=Seconds(900.0))[0]
    name, axes, reduce, matrix = case.key
    return [
        Result(
            network=name,
            axes=axes,
            reduce=reduce,
            matrix=matrix,
            program=str(program),
            payload=PAYLOAD,
            seconds=tuple(Seconds(round(seconds, 5)) for seconds, _ in times),
            load=tuple(round(load, 1) for _, load in times),
        )
        for program, times in zip(programs, cast(Sequence[Times], found), strict=True)
    ]


def known(results: Path) -> list[Record]:
    """What the results file holds."""
    return read_records(results.read_text()) if results.exists() else []


def append(results: Path, records: Sequence[Record]) -> None:
    """Add to the results file."""
    with results.open("a") as file:
        file.write(write_records(records))


def waiting(records: Sequence[Record], clusters: Mapping[str, Cluster]) -> list[Case]:
    """The cases to measure, in the seeded order; those measured under load come last, once."""
    loads: dict[object, list[float]] = defaultdict(list)
    for it in records:
        if isinstance(it, Result):
            loads[it.case] += [statistics.median(it.load)]
    every = [case for name, cluster in clusters.items() for case in cases(name, cluster)]
    random.Random(SEED).shuffle(every)
    again = [case for case in every if loads[case.key] and min(loads[case.key]) > CALM]
    return [case for case in every if not loads[case.key]] + again


def campaign(results: Path, budget: float) -> None:
    """Measure what is not measured yet, as long as the budget lasts."""
    begun, failed = time.monotonic(), 0
    nominal = {name: network.cluster for name, network in NETWORKS.items()}
    left = waiting(known(results), nominal)
    for number, case in enumerate(left, start=1):
        if case.network not in described(nominal, known(results)):
            append(results, [calibrate(case.network)])
        cluster = described(nominal, known(results))[case.network]
        needed, spent = expected_seconds(case, cluster), time.monotonic() - begun
        if spent + needed > budget:
            continue
        programs = [it.program for it in chosen(case, cluster)]
        try:
            append(results, measure(case, programs))
        except RankError as error:
            failed += 1
            print(f"{' '.join(case.key)} failed: {error}", flush=True)
        took = time.monotonic() - begun - spent
        print(
            f"{number}/{len(left)} {' | '.join(case.key)}: {len(programs)} programs, {took:.0f} s "
            f"(expected {needed:.0f}), load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    print(f"{failed} cases failed" if failed else "done", flush=True)


def summary(results: Path) -> None:
    """Print the figures of what was measured."""
    records = known(results)
    clusters = described({name: it.cluster for name, it in NETWORKS.items()}, records)
    every = [case for name, cluster in clusters.items() for case in cases(name, cluster)]
    measured = {it.case for it in records if isinstance(it, Result)}
    priced = {it.key: predictions(it, clusters[it.network]) for it in every if it.key in measured}
    found = timings(records, priced)
    figures = summarize_bed(every, found)
    console = new_console()
    console.print(f"{len(found)} of {len(every)} cases, {sum(map(len, found.values()))} programs\n")
    for table in (table_of_links(clusters), table_of_errors(figures), table_of_gains(figures)):
        console.print(table)
    console.print(table_of_choices(figures))


def table_of_links(clusters: Mapping[str, Cluster]) -> Table:
    """What was fitted."""
    table = new_table("network", "link", "latency>", "bandwidth>")
    for name, cluster in clusters.items():
        for link in (link for level in cluster.levels for link in level.links):
            rate, wait = format_bandwidth(link.out), format_seconds(link.latency)
            table.add_row(name, link.name, wait, rate)
    return table


def table_of_choices(figures: BedSummary) -> Table:
    """How well predictions choose."""
    table = new_table("choosing by prediction", "measured>")
    accuracy = figures.accuracy
    for words, cell in (
        ("cases with more than 10 programs", str(accuracy.cases)),
        *((f"top-{k}", f"{share:.1%}") for k, share in accuracy.top.items()),
        ("rank correlation, median case", f"{accuracy.correlation:.3f}"),
        ("rank correlation, worst case", f"{accuracy.lowest_correlation:.3f}"),
        ("regret of the first choice, median", f"{accuracy.regret:.1%}"),
        ("regret of the first choice, mean", f"{accuracy.mean_regret:.1%}"),
        ("regret of the first choice, worst", f"{accuracy.largest_regret:.1%}"),
        ("programs faster than AllReduce", f"{figures.programs_ahead:.1%}"),
        ("spread of repetitions, median program", f"{figures.spread:.1%}"),
    ):
        table.add_row(words, cell)
    return table


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="600min", help="how long it may take, as 10min")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the results file")
    parser.add_argument("--only-summary", action="store_true")
    parser.add_argument("--estimate", action="store_true", help="how long the rest would take")
    asked = parser.parse_args()
    nominal = {name: network.cluster for name, network in NETWORKS.items()}
    if asked.estimate:
        left = waiting(known(asked.results), nominal)
        for name in nominal:
            own = [case for case in left if case.network == name]
            seconds = sum(expected_seconds(case, nominal[name]) for case in own)
            print(f"{name}: {len(own)} cases, {seconds / 60:.1f} min")
        return
    if not asked.only_summary:
        campaign(asked.results, parse_seconds(asked.budget))
    summary(asked.results)


if __name__ == "__main__":
    main()
