"""The judge's word on what a search returned. Enters: a program. Leaves: the same program, or an
error, so that nothing reaches the user on the synthesizer's word alone.

Whether a program in hardware order is right does not depend on the sizes of its levels (`tests`
hold this against the literal rules), so that on a large machine the judge sees one reduction
group, with its levels halved until it is small enough.
"""

from __future__ import annotations

import math

from meshwright.place.axes import Axis
from meshwright.place.placement import Placement
from meshwright.reduce.check import check
from meshwright.reduce.dsl import Program
from meshwright.reduce.hierarchy import Hierarchy
from meshwright.reduce.lower import lower, reduction_groups

LARGE = 256
"""From this many devices on the judge looks at a small copy."""

MOST = 64
"""The most devices of a small copy."""


def verified(hierarchy: Hierarchy, program: Program) -> Program:
    """The program, once the judge that replays chunk states has found nothing wrong with it."""
    large = hierarchy.placement.devices >= LARGE and hierarchy.kind == "hardware"
    judged = _small_copy(hierarchy) if large else hierarchy
    problem = check(lower(judged, program), reduction_groups(judged))
    if problem is not None:
        raise AssertionError(f"the synthesizer returned a wrong program, {program}: {problem}")
    return program


def _small_copy(hierarchy: Hierarchy) -> Hierarchy:
    """One reduction group of the hierarchy, with at most `MOST` devices."""
    sizes = {level.name: level.size for level in hierarchy.levels} or {"device": 1}
    while math.prod(sizes.values()) > MOST:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = max(2, sizes[largest] // 2)
    axis = Axis("reduced", math.prod(sizes.values()))
    return Hierarchy(Placement((axis,), (tuple(sizes.values()),)), tuple(sizes), [axis.name])
