"""Verification of synthesized reduction programs, on a small copy of the machine. Enters: a
program. Leaves: the same program, or an error, so that nothing reaches the user on the
synthesizer's word alone.

Whether a program is right does not depend on the sizes of its levels (`tests` hold this against
the literal rules), so that on a large machine the judge sees a small copy: one reduction group in
which every factor above one is two.
"""

from __future__ import annotations

import math

from meshwright.collectives.check import check
from meshwright.collectives.dsl import Program
from meshwright.collectives.execute import run
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.lowering import lower_program, reduction_groups
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement

LARGE = 256
"""From this many devices on the judge looks at a small copy."""


def verified(hierarchy: Hierarchy, program: Program) -> Program:
    """The program, once the judge that replays chunk states has found nothing wrong with it."""
    judged = _small_copy(hierarchy) if hierarchy.placement.devices >= LARGE else hierarchy
    fault = check(lower_program(judged, program), reduction_groups(judged))
    if fault is not None:
        raise AssertionError(f"the synthesizer returned a wrong program, {program}: {fault}")
    return program


def problem(hierarchy: Hierarchy, program: Program) -> str | None:
    """What is wrong with a program that somebody gives, by both judges, or None."""
    judged = _small_copy(hierarchy) if hierarchy.placement.devices >= LARGE else hierarchy
    steps, groups = lower_program(judged, program), reduction_groups(judged)
    fault = check(steps, groups)
    if fault is None and not run(steps, groups):
        fault = "it does not leave the sum on every device"
    return fault


def _small_copy(hierarchy: Hierarchy) -> Hierarchy:
    """The same hierarchy with the least sizes that leave its structure as it is."""
    placement = hierarchy.placement
    matrix = tuple(
        tuple(min(factor, 2) if i in hierarchy.reduce else 1 for factor in row)
        for i, row in enumerate(placement.matrix)
    )
    axes = tuple(
        Axis(axis.name, math.prod(row)) for axis, row in zip(placement.axes, matrix, strict=True)
    )
    reduce = [placement.axes[i].name for i in hierarchy.reduce]
    names = hierarchy.hardware_names
    return Hierarchy(Placement(axes, matrix), names, reduce, hierarchy.kind)
