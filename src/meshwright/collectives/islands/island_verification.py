"""Verification of programs over unequal groups, by the laws and both judges. Enters: a sum of
islands, a program. Leaves: what is wrong with it, or None.

The laws say first whether it is in the language at all: what crosses is whole, and islands agree.
Then the judges replay what `lowering` makes of it, on chunks of unequal size, by the printed rules
and on integer arrays; they know nothing of laws, and see the sum or not. Where islands agree that
one device holds what crosses, sizes change nothing (`tests` hold this), so that of a large machine
the judges see a small copy in which every level above one is two.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.collectives.check import check
from meshwright.collectives.execute import run
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.islands.island_lowering import everybody, lower_island_program
from meshwright.collectives.islands.island_program import IslandProgram
from meshwright.collectives.islands.island_synthesis import (
    IslandMoveSpace,
    hierarchy_of,
    inner_hierarchy,
)
from meshwright.collectives.verify import LARGE


def island_problem(cluster: IslandCluster, program: IslandProgram) -> str | None:
    """What is wrong with a program, by the laws and both judges, or None."""
    try:
        copies = IslandMoveSpace(cluster).trace(program).copies
    except InputError as error:
        return error.problem
    islands = [inner_hierarchy(island.cluster) for island in cluster.islands]
    if cluster.devices >= LARGE and max(copies, default=1) <= 1:
        islands = [
            hierarchy_of(
                island.cluster.level_names, [min(size, 2) for size in island.cluster.hierarchy]
            )
            for island in cluster.islands
        ]
    return judged(islands, program)


def judged(islands: Sequence[Hierarchy], program: IslandProgram) -> str | None:
    """What is wrong with a program, by both judges alone, or None."""
    try:
        steps, weights = lower_island_program(islands, program)
    except InputError as error:
        return error.problem
    groups = everybody(islands)
    fault = check(steps, groups, weights)
    if fault is None and not run(steps, groups, weights):
        fault = "it does not leave the sum on every device"
    return fault


def verified_islands(cluster: IslandCluster, program: IslandProgram) -> IslandProgram:
    """The program, once both judges have found nothing wrong with it."""
    fault = island_problem(cluster, program)
    if fault is not None:
        raise AssertionError(f"the synthesizer returned a wrong program, {program}: {fault}")
    return program
