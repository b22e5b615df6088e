"""Replication move: redundant computation instead of data parallelism along one mesh factor.
Enters: the roles of a plan. Leaves: roles in which samples are no longer cut along one factor, but
everything is copied along it.

Where a network is slow, twice the work may take less than sums over twice as many devices; no
single unit shows it, and sums of costs, which do not know what overlaps, do not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.sharding.layout import MeshFactor
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import OpGroup


def copied(
    units: Sequence[OpGroup], roles: Codes, factors: Sequence[MeshFactor]
) -> Iterator[Codes]:
    """For each level the roles with its first factor along which samples are cut given up."""
    samples = np.array([-1 if unit.samples is None else unit.samples for unit in units])
    cut = (roles == samples[:, None]) & (samples >= 0)[:, None]
    levels: set[int] = set()
    for number, factor in enumerate(factors):
        if factor.level not in levels and cut[:, number].any():
            levels.add(factor.level)
            other = roles.copy()
            other[cut[:, number], number] = WHOLE
            yield other
