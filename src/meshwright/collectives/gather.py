"""The cheapest AllGather over a hierarchy, level by level (the last phase of P²'s programs).
Enters: a cluster all of whose devices hold different parts. Leaves: over which levels to gather,
one after the other, and the time.

    program = runs of neighbouring levels R_1, R_2, ..., that are together all levels above one
    time    = Σ over runs of AllGather over the run, before which a device holds
              held · ∏ sizes of the levels in earlier runs

One run of all levels is a plain AllGather over everybody. As few runs as are cheapest: a plain one
where no other is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

from meshwright.base.integers import to_digits
from meshwright.base.quantities import Seconds
from meshwright.cost.alpha_beta import Pricer, cheapest_line
from meshwright.cost.collective import Collective
from meshwright.cost.pattern import Digit, PatternUse

Runs = tuple[tuple[int, ...], ...]
"""Levels by number, gathered over one after the other."""


class GatherProgram(NamedTuple):
    """Over which levels to gather, and how long it takes."""

    runs: Runs
    seconds: Seconds


def cheapest_gather(pricer: Pricer, held: float) -> GatherProgram:
    """The gather of least predicted time, of so many bytes on each device.

    >>> from meshwright import Cluster
    >>> cluster = Cluster.named("gcp-a100", node=4)
    >>> cheapest_gather(Pricer(cluster), 2**20).runs
    ((0,), (1,))
    """
    cluster = pricer.cluster
    levels = [level for level, size in enumerate(cluster.hierarchy) if size > 1]
    programs = [
        GatherProgram(runs, _seconds(pricer, runs, held))
        for cuts in range(max(1, len(levels)))
        for places in combinations(range(1, len(levels)), cuts)
        for runs in permutations(tuple(levels[a:b]) for a, b in pairwise((0, *places, len(levels))))
    ]
    return min(programs, key=lambda program: program.seconds)


def _seconds(pricer: Pricer, runs: Runs, held: float) -> Seconds:
    total, sizes = 0.0, pricer.cluster.hierarchy
    for run in runs:
        if not run:
            continue
        pattern = tuple(
            (Digit(size, PatternUse.MEMBER if level in run else PatternUse.EVERY),)
            if size > 1
            else ()
            for level, size in enumerate(sizes)
        )
        total += cheapest_line(pricer.lines(Collective.ALL_GATHER, pattern), held).at(held)
        held *= math.prod(sizes[level] for level in run)
    return Seconds(total)


def gather_groups(
    sizes: Sequence[int], runs: Runs, members: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each run the groups of some devices of a cluster of these sizes.

    If they are not a regular part of it, so that some would miss what others hold, one group.

    >>> gather_groups([2, 2], ((0,), (1,)), range(4))
    (((0, 2), (1, 3)), ((0, 1), (2, 3)))
    >>> gather_groups([2, 2], ((0,), (1,)), (0, 1, 2))
    (((0, 1, 2),),)
    """
    run_groups, holds = [], {member: frozenset([member]) for member in members}
    for run in runs:
        groups: dict[tuple[int, ...], list[int]] = {}
        for member in members:
            digits = to_digits(member, sizes)
            rest = tuple(digit for level, digit in enumerate(digits) if level not in run)
            groups.setdefault(rest, []).append(member)
        several = tuple(tuple(group) for group in groups.values() if len(group) > 1)
        for group in several:
            holds |= dict.fromkeys(group, frozenset().union(*(holds[device] for device in group)))
        if several:
            run_groups.append(several)
    if any(len(held) < len(members) for held in holds.values()):
        return ((tuple(members),),)
    return tuple(run_groups)
