"""Both judges' word on a program over unequal groups. Enters: islands by their clusters, a program.
Leaves: what is wrong with it, or None.

The judges replay what `lowering` makes of the program, on chunks of unequal size, by the printed
rules and on integer arrays. What a crossing asks besides (whole sums, from the words of `laws`)
they need not know: they see the sum or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.cluster.model import Cluster
from meshwright.collectives.check import check
from meshwright.collectives.execute import run
from meshwright.collectives.islands.lowering import everybody, lower_island_program
from meshwright.collectives.islands.program import IslandProgram


def island_problem(clusters: Sequence[Cluster], program: IslandProgram) -> str | None:
    """What is wrong with a program, by both judges, or None."""
    try:
        steps, weights = lower_island_program(clusters, program)
    except InputError as error:
        return error.problem
    groups = everybody(clusters)
    found = check(steps, groups, weights)
    if found is None and not run(steps, groups, weights):
        found = "it does not leave the sum on every device"
    return found


def verified_islands(clusters: Sequence[Cluster], program: IslandProgram) -> IslandProgram:
    """The program, once the judge that replays chunk states has found nothing wrong with it."""
    steps, weights = lower_island_program(clusters, program)
    found = check(steps, everybody(clusters), weights)
    if found is not None:
        raise AssertionError(f"the synthesizer returned a wrong program, {program}: {found}")
    return program
