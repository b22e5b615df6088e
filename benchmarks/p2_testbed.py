"""P² on a real network: every program of every placement, on the testbed, against its prediction.

    PYTHONPATH=. python benchmarks/p2_testbed.py           goes on where the results file ends
    ... --budget 10min --results /tmp/ten_minutes.jsonl    a fair sample that fits
    ... --only-summary                                     the figures of what is there

Enters: nothing but the machine (root, iproute2). Leaves: lines in `p2_testbed.jsonl`, one for each
program, appended case by case, and the figures. Cases come in a seeded random order, so that
wherever the campaign is cut, what is there is a fair sample.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.foundation.units import Seconds, parse_seconds
from meshwright.price.pattern import Digit, Use, groups
from meshwright.reduce.dsl import Program
from meshwright.reduce.lower import Groups, lower, reduction_groups
from meshwright.run.ranks import RankError
from meshwright.validate.bed_rows import (
    Calibration,
    Case,
    LevelTimes,
    Record,
    Result,
    described,
    read_records,
    write_records,
)
from p2_testbed_cases import (
    NEAR,
    NEAR_ROUNDS,
    NETWORKS,
    NOMINAL,
    PAYLOAD,
    ROUNDS,
    chosen,
    expected_seconds,
    waiting,
)
from p2_testbed_figures import print_figures
from p2_testbed_ranks import Times, time_levels, time_programs
from testbed import Testbed

RESULTS = Path(__file__).with_suffix(".jsonl")


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


def campaign(results: Path, budget: float) -> None:
    """Measure what is not measured yet, as long as the budget lasts."""
    begun, failed = time.monotonic(), 0
    left = waiting(known(results))
    for number, case in enumerate(left, start=1):
        if case.network not in described(NOMINAL, known(results)):
            append(results, [calibrate(case.network)])
        cluster = described(NOMINAL, known(results))[case.network]
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


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="600min", help="how long it may take, as 10min")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the results file")
    parser.add_argument("--only-summary", action="store_true")
    parser.add_argument("--estimate", action="store_true", help="how long the rest would take")
    asked = parser.parse_args()
    try:
        if asked.estimate:
            left = waiting(known(asked.results))
            seconds = sum(expected_seconds(case, NOMINAL[case.network]) for case in left)
            print(f"{len(left)} cases to measure, or again, take about {seconds / 60:.0f} min")
            return
        if not asked.only_summary:
            campaign(asked.results, parse_seconds(asked.budget))
        print_figures(known(asked.results))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
