"""Both judges' word on a program over unequal groups. Enters: a sum of islands, a program. Leaves:
what is wrong with it, or None.

The laws say first whether it is in the language at all: what crosses is whole, and islands agree.
Then the judges replay what `lowering` makes of it, on chunks of unequal size, by the printed rules
and on integer arrays; they know nothing of laws, and see the sum or not. Where islands agree that
one device holds what crosses, sizes change nothing (`tests` hold this), so that of a large machine
the judges see a small copy in which every level above one is two.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.cluster.islands import IslandCluster
from meshwright.collectives.check import check
from meshwright.collectives.execute import run
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.islands.lowering import everybody, lower_island_program
from meshwright.collectives.islands.program import IslandProgram
from meshwright.collectives.islands.synthesize import (
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
    islands = [inner_hierarchy(own.cluster) for own in cluster.islands]
    if cluster.devices >= LARGE and max(copies, default=1) <= 1:
        islands = [
            hierarchy_of(own.cluster.level_names, [min(size, 2) for size in own.cluster.hierarchy])
            for own in cluster.islands
        ]
    return judged(islands, program)


def judged(islands: Sequence[Hierarchy], program: IslandProgram) -> str | None:
    """What is wrong with a program, by both judges alone, or None."""
    try:
        steps, weights = lower_island_program(islands, program)
    except InputError as error:
        return error.problem
    groups = everybody(islands)
    found = check(steps, groups, weights)
    if found is None and not run(steps, groups, weights):
        found = "it does not leave the sum on every device"
    return found


def verified_islands(cluster: IslandCluster, program: IslandProgram) -> IslandProgram:
    """The program, once both judges have found nothing wrong with it."""
    found = island_problem(cluster, program)
    if found is not None:
        raise AssertionError(f"the synthesizer returned a wrong program, {program}: {found}")
    return program
