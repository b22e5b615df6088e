"""P² on a real network: every program of every placement, on the testbed, against its prediction.

    PYTHONPATH=. python benchmarks/p2_testbed.py           goes on where the results file ends
    ... --budget 10min --results /tmp/ten_minutes.jsonl    a fair sample that fits
    ... --backend nccl --algorithm tree                    NCCL ranks that share a GPU
    ... --only-summary                                     the figures of what is there

Enters: nothing but the machine (root, for NCCL a GPU). Leaves: lines in `p2_testbed.jsonl`, or
`p2_testbed_nccl_ring.jsonl` and `..._tree.jsonl`, one for each program, appended case by case, and
the figures. Cases come in a seeded random order, so that wherever the campaign is cut, what is
there is a fair sample; on NCCL those of one network after those of another, each with its share of
the time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, parse_seconds
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.lowering import Groups, lower_program, reduction_groups
from meshwright.cost.pattern import Digit, PatternUse, groups
from meshwright.run.launch.gpus import gpus_for
from meshwright.run.launch.ranks import RankError
from meshwright.validate.bed_rows import Case, Record, described, read_records
from p2_testbed_cases import (
    NEAR,
    Campaign,
    campaign_named,
    chosen,
    expected_seconds,
    sessions,
    waiting,
)
from p2_testbed_figures import print_figures
from p2_testbed_ranks import Job, Session, measure_cases
from testbed import Testbed

PATIENCE = 120.0
"""Seconds that a session may take beyond its share before its ranks are given up."""


@contextmanager
def running(campaign: Campaign, name: str) -> Iterator[Testbed]:
    """A network. Where ranks compute on CPUs, they go before all else on this machine, all their
    threads alike.

    They inherit it from the server that forks them, which inherits it from us. Without it, a step
    inside a node takes 4 to 12 ms on a busy machine instead of 2.3 to 2.8. The threads of NCCL
    wait busily, and would leave nothing to others.
    """
    with Testbed(campaign.clusters[name], inside=name in campaign.inside) as bed:
        if campaign.gpus:
            yield bed
            return
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            yield bed
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def level_groups(cluster: Cluster) -> tuple[Groups, ...]:
    """For each level one group of its members; of the innermost, all of them at once."""
    by_level = []
    for depth, level in enumerate(cluster.levels):
        rest = PatternUse.EVERY if depth == len(cluster.levels) - 1 else PatternUse.FIRST
        uses = [PatternUse.MEMBER if it is level else rest for it in cluster.levels]
        pattern = tuple(
            (Digit(it.cardinality, use),) for it, use in zip(cluster.levels, uses, strict=True)
        )
        by_level.append(tuple(groups(pattern)))
    return tuple(by_level)


def session(campaign: Campaign, cases: Sequence[Case], results: Path, until: float) -> Session:
    """What the ranks of a network do for some of its cases."""
    name = cases[0].network
    fitted = described(campaign.clusters, known(results))
    cluster = fitted.get(name, campaign.clusters[name])
    levels = zip(cluster.level_names, level_groups(cluster), strict=True)
    return Session(
        name,
        levels=() if name in fitted else tuple(levels),
        jobs=tuple(job(campaign, case, cluster) for case in cases),
        payload=campaign.payload,
        rounds=campaign.rounds,
        near_rounds=campaign.near_rounds,
        near=NEAR,
        until=until,
        results=results.absolute(),
    )


def job(campaign: Campaign, case: Case, cluster: Cluster) -> Job:
    """What is measured of a case."""
    hierarchy, priced = case.hierarchy(cluster), chosen(campaign, case, cluster)
    return Job(
        case.key,
        tuple(str(it.program) for it in priced),
        tuple(lower_program(hierarchy, it.program) for it in priced),
        reduction_groups(hierarchy),
        expected_seconds(campaign, priced),
    )


def known(results: Path) -> list[Record]:
    """What the results file holds."""
    return read_records(results.read_text()) if results.exists() else []


def measure(campaign: Campaign, results: Path, budget: float) -> None:
    """Measure what is not measured yet, as long as the budget lasts."""
    ends, failed = time.time() + budget, 0
    left = sessions(campaign, waiting(campaign, known(results)))
    for number, cases in enumerate(left):
        share = (ends - time.time()) / (len(left) - number) if campaign.together else budget
        until = min(ends, time.time() + share)
        asked = session(campaign, cases, results, until)
        needed = campaign.starting + min(it.expected for it in asked.jobs)
        if time.time() + needed > until:
            continue
        with running(campaign, asked.network) as bed:
            try:
                bed.run(
                    measure_cases,
                    asked,
                    gpus=campaign.gpus,
                    environment=campaign.environment,
                    timeout=Seconds(until - time.time() + PATIENCE),
                )
            except RankError as error:
                failed += 1
                print(f"{asked.network} failed: {error}", flush=True)
    print(f"{failed} sessions failed" if failed else "done", flush=True)


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="gloo", help="gloo or nccl")
    parser.add_argument("--algorithm", default="ring", help="ring, or tree for nccl's AllReduces")
    parser.add_argument("--budget", default="600min", help="how long it may take, as 10min")
    parser.add_argument("--results", type=Path, help="the results file")
    parser.add_argument("--only-summary", action="store_true")
    parser.add_argument("--estimate", action="store_true", help="how long the rest would take")
    asked = parser.parse_args()
    try:
        campaign = campaign_named(asked.backend, asked.algorithm)
        results = asked.results or Path(__file__).parent / campaign.results
        if asked.estimate:
            print_estimate(campaign, results)
            return
        if not asked.only_summary:
            if campaign.gpus:
                gpus_for(campaign.gpus, 1)
            measure(campaign, results, parse_seconds(asked.budget))
        print_figures(campaign, known(results))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def print_estimate(campaign: Campaign, results: Path) -> None:
    """Print how long the rest would take."""
    left = waiting(campaign, known(results))
    seconds = campaign.starting * len(sessions(campaign, left)) + sum(
        expected_seconds(campaign, chosen(campaign, case, campaign.clusters[case.network]))
        for case in left
    )
    print(f"{len(left)} cases to measure, or again, take about {seconds / 60:.0f} min")


if __name__ == "__main__":
    main()
