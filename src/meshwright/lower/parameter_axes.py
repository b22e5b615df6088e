"""The mesh axes of a plan's parameters (a DeviceMesh's dims). Enters: a `ParallelGraph`, and the
factors along which each parameter is sharded (ZeRO). Leaves: `ParameterAxis`es in an order, and
what every parameter does along each.

Neighbouring factors of a level are one axis where every parameter does the same on all of them.
ZeRO cuts what operators have cut, wherever its factors are, and a DeviceMesh cuts in the order of
its axes:
    a before b  <=  some parameter has a dim that operators cut along a, and ZeRO along b
Two parameters may ask for opposite orders; then no order is right, and the first is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from meshwright.lower.boxes import shape_of
from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.sharding.layout import factors
from meshwright.sharding.states import is_at


class DimCut(NamedTuple):
    """A dim of a parameter, as the module has it, is cut: by operators, or by ZeRO inside that."""

    dim: int
    zero: bool


Along = DimCut | Literal["at"] | None
"""What a parameter does along a factor: it is cut, at one coordinate, or copied."""


class ParameterAxis(NamedTuple):
    """An axis of the mesh."""

    name: str
    factors: tuple[int, ...]
    size: int


class ParameterAxes(NamedTuple):
    """The mesh of a plan's parameters."""

    axes: tuple[ParameterAxis, ...]
    along: Mapping[str, tuple[Along, ...]]
    """For each parameter, along each axis."""

    def shards(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The factors of each axis along which ZeRO cuts a parameter, in the order of the cuts."""
        return tuple(
            axis.factors
            for axis, cut in zip(self.axes, self.along[name], strict=True)
            if isinstance(cut, DimCut) and cut.zero
        )


def shard_dim(parallel: ParallelGraph, name: str) -> int:
    """The dim of a parameter that ZeRO cuts: the first of which a piece has more than one.

    A parameter that the module has with its first two dims as one is cut there.
    """
    placement = parallel.made[name].forward
    if name in _stacked(parallel):
        return 1
    shape = shape_of(placement.box(next(parallel.machine.present(placement.states))))
    return next((dim for dim, size in enumerate(shape) if size > 1), 0)


def parameter_axes(parallel: ParallelGraph, shards: Mapping[str, Sequence[int]]) -> ParameterAxes:
    """The axes of all parameters that operators read."""
    read = [parameter.tensor.name for parameter in parallel.plan.graph.parameters]
    roles = {
        name: _roles(parallel, name, shards.get(name, ())) for name in read if name in parallel.made
    }
    axes = _ordered(_axes(parallel, list(roles.values())), list(roles.values()))
    along = {
        name: tuple(factor_roles[axis.factors[0]] for axis in axes)
        for name, factor_roles in roles.items()
    }
    return ParameterAxes(axes, along)


def _stacked(parallel: ParallelGraph) -> frozenset[str]:
    return frozenset(
        parameter.tensor.name for parameter in parallel.plan.graph.parameters if parameter.stacked
    )


def _roles(parallel: ParallelGraph, name: str, shards: Sequence[int]) -> tuple[Along, ...]:
    """What a parameter does along each factor."""
    hidden = int(name in _stacked(parallel))
    zero = DimCut(shard_dim(parallel, name) - hidden, True)
    return tuple(
        "at"
        if is_at(state)
        else DimCut(max(0, state - hidden), False)
        if state >= 0
        else zero
        if factor in shards
        else None
        for factor, state in enumerate(parallel.made[name].forward.states)
    )


def _axes(parallel: ParallelGraph, roles: Sequence[tuple[Along, ...]]) -> tuple[ParameterAxis, ...]:
    """Neighbouring factors of a level make one axis where every parameter does the same on them."""
    cluster = parallel.plan.cluster
    cluster_factors = factors(cluster)
    runs = groupby(
        range(len(cluster_factors)),
        lambda f: (cluster_factors[f].level, *(role[f] for role in roles)),
    )
    together = [tuple(run) for _, run in runs]
    levels = [cluster.levels[cluster_factors[run[0]].level].name for run in together]
    axes, seen = list[ParameterAxis](), dict[str, int]()
    for run, level in zip(together, levels, strict=True):
        seen[level] = seen.get(level, -1) + 1
        name = level if levels.count(level) == 1 else f"{level}{seen[level]}"
        axes.append(ParameterAxis(name, run, math.prod(cluster_factors[f].size for f in run)))
    return tuple(axes)


def _ordered(
    axes: Sequence[ParameterAxis], roles: Sequence[tuple[Along, ...]]
) -> tuple[ParameterAxis, ...]:
    """The axes, those first inside of whose cuts others cut; else as the cluster has them."""
    left, ordered = list(axes), list[ParameterAxis]()
    while left:
        free = (
            axis for axis in left if not any(_cuts_before(other, axis, roles) for other in left)
        )
        ordered.append(next(free, left[0]))
        left.remove(ordered[-1])
    return tuple(ordered)


def _cuts_before(
    one: ParameterAxis, other: ParameterAxis, roles: Sequence[tuple[Along, ...]]
) -> bool:
    """Whether ZeRO cuts along `other` what an operator has cut along `one`."""
    pairs = ((role[one.factors[0]], role[other.factors[0]]) for role in roles)
    return any(
        isinstance(a, DimCut) and isinstance(b, DimCut) and a.dim == b.dim and (not a.zero) & b.zero
        for a, b in pairs
    )
