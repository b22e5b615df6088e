"""The layouts of a problem, factor by factor: which roles an op group may give a mesh factor.
Enters: a `StepModel`. Leaves: a `LayoutSpace`. It does not know how the space is searched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.sharding.layout import IDLE, REPLICA
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, at
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.assign import key_of
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Indices


class LayoutSpace(NamedTuple):
    """The roles that a unit may give a factor."""

    role: NDArray[np.int8]
    """[units, factors, most roles]"""
    roles: Indices
    """[units, factors] how many there are."""
    group: Indices
    """[2, units] the group of a unit: of those that share parameters, of those of its type."""
    group_start: Indices
    """[2, groups + 1]"""
    member: Indices
    """[2, units] the units of the groups."""


def space(problem: StepModel) -> LayoutSpace:
    """Every role that some layout gives and that is allowed."""
    listed = [
        [_roles(problem, unit, f) for f in range(len(problem.factors))] for unit in problem.units
    ]
    most = max((len(row) for unit in listed for row in unit), default=1)
    shape = (len(problem.units), len(problem.factors))
    role = np.full((*shape, most), WHOLE, np.int8)
    count = np.zeros(shape, np.int32)
    for u, unit in enumerate(listed):
        for f, roles in enumerate(unit):
            role[u, f, : len(roles)] = roles
            count[u, f] = len(roles)
    alike = [_sharing(problem), [int(number) for number in problem.times.type]]
    group = np.array([np.unique(numbers, return_inverse=True)[1] for numbers in alike], np.int32)
    members = np.argsort(group, axis=1, kind="stable").astype(np.int32)
    starts = [
        np.searchsorted(np.sort(numbers), np.arange(len(problem.units) + 1)) for numbers in group
    ]
    return LayoutSpace(role, count, group, np.array(starts, np.int32), members)


def _roles(problem: StepModel, unit: OpGroup, f: int) -> list[int]:
    """Splits that a factor can cut, replica, coordinates."""
    size = problem.factors[f].size
    every = {s: split.name for s, split in enumerate(unit.splits) if unit.cuttable(s, size)}
    every[WHOLE] = REPLICA
    every |= {at(c): f"{IDLE}{c}" for c in range(size if problem.apart[f] else 0)}
    roles = [role for role, name in every.items() if problem.allowed.role(unit, f, name)]
    if not roles:
        level = problem.cluster.level_names[problem.factors[f].level]
        raise InputError(
            f"unit {unit.name!r} may have no role for factor {f} of the machine, on {level!r}",
            "take away a constraint",
        )
    return roles


def group_outside_space(problem: StepModel, room: LayoutSpace, roles: Codes) -> OpGroup | None:
    """The first unit whose roles are not in the space; walks start inside it."""
    valid = np.arange(room.role.shape[2]) < room.roles[:, :, np.newaxis]
    inside = ((room.role == roles[:, :, np.newaxis]) & valid).any(axis=2).all(axis=1)
    table, times = problem.prices.table, problem.times
    for number, unit in enumerate(problem.units):
        key = key_of(int(times.type[number]), roles[number], table, times.table)
        if not inside[number] or key < 0:
            return unit
    return None


def _sharing(problem: StepModel) -> list[int]:
    """For each unit the first of those with which it shares parameters, directly or not."""
    first = list(range(len(problem.units)))
    for bundle in problem.bundles:
        if bundle.parameters:
            joined = {first[consumer.unit] for consumer in bundle.consumers} | {first[bundle.maker]}
            first = [min(joined) if root in joined else root for root in first]
    return first
