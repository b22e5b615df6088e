"""Parameters as DTensors. Enters: an executor. Leaves: for each of its pieces a parameter that
PyTorch's own functions (clipping, GradScaler, checkpoints, state dicts, LAMB) understand.

The DeviceMesh has the plan's mesh factors as dims, those in one where every parameter does the same
on both. Along a dim a parameter is `Shard(d)`, as its operator cuts it or, with ZeRO, `Shard(0)`;
else `Replicate`; where it is only at one coordinate (stages) it lies on the sub-mesh there.

DTensor cuts dim after dim, in the mesh's order, into chunks of ceil(n / ways). What lies otherwise
(a stretch of a row that is no row of the tensor, say) it cannot say:
    sayable(plan)  <=>  for some order of the mesh's dims, for every parameter and every device,
                        the box that DTensor says is the box that is kept.
If a plan is not, all parameters stay plain pieces: one call on both kinds fails in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, permutations
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from meshwright.base.integers import from_digits
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import full, shape_of
from meshwright.lower.machine import Coordinates
from meshwright.lower.ownership import Holdings
from meshwright.lower.script import Script
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import whole_of
from meshwright.sharding.layout import factors
from meshwright.sharding.states import is_at

ALONE = "alone"
"""A mesh dim of one device, for parameters that are on one device only beside others."""

Along = int | Literal["at"] | None
"""What a parameter does along a mesh dim: it is cut at a dim, at one coordinate, or copied."""


class DTensorAxis(NamedTuple):
    """A dim of the DeviceMesh."""

    name: str
    factors: tuple[int, ...]
    size: int


class DTensorPlacement(NamedTuple):
    """How a mesh says where parameters are."""

    axes: tuple[DTensorAxis, ...]
    along: Mapping[str, tuple[Along, ...]]
    """For each parameter, along each axis."""


def said(script: Script, holdings: Holdings) -> DTensorPlacement | None:
    """The mesh and placements of a plan's parameters; None where DTensor cannot say them.

    ZeRO cuts what tensor parallelism has cut, wherever its factors are: so orders are tried.
    """
    read = [own.tensor.name for own in script.plan.graph.parameters]
    roles = {name: _roles(script, name) for name in read if name in script.wiring.made}
    given = _axes(script, list(roles.values()))
    alone = any(all(role == "at" for role in own) for own in roles.values())
    for order in permutations(given):
        axes = (*order, DTensorAxis(ALONE, (), 1)) if alone else order
        along = {
            name: tuple(own[axis.factors[0]] if axis.factors else None for axis in axes)
            for name, own in roles.items()
        }
        whole = DTensorPlacement(axes, along)
        if all(_agrees(script, holdings, whole, name) for name in along):
            return whole
    return None


def _roles(script: Script, name: str) -> tuple[Along, ...]:
    """What a parameter does along each factor."""
    states = script.wiring.made[name].there.states
    shards = next(
        (own.shards for b in script.buckets for own in b.parameters if own.name == name), ()
    )
    return tuple(
        "at" if is_at(state) else state if state >= 0 else 0 if factor in shards else None
        for factor, state in enumerate(states)
    )


def _axes(script: Script, roles: Sequence[tuple[Along, ...]]) -> tuple[DTensorAxis, ...]:
    """Neighbouring factors of a level make one axis where every parameter does the same on them."""
    cluster = script.plan.cluster
    own = factors(cluster)
    runs = groupby(range(len(own)), lambda f: (own[f].level, *(role[f] for role in roles)))
    joined = [tuple(run) for _, run in runs]
    levels = [cluster.levels[own[run[0]].level].name for run in joined]
    found, seen = list[DTensorAxis](), dict[str, int]()
    for run, level in zip(joined, levels, strict=True):
        seen[level] = seen.get(level, -1) + 1
        name = level if levels.count(level) == 1 else f"{level}{seen[level]}"
        found.append(DTensorAxis(name, run, math.prod(own[f].size for f in run)))
    return tuple(found)


def _agrees(script: Script, holdings: Holdings, whole: DTensorPlacement, name: str) -> bool:
    """Whether DTensor's cuts are those of the plan, on every device."""
    machine = script.wiring.machine
    shape = script.plan.graph.stored[name].shape
    if any(isinstance(dim, int) and dim >= len(shape) for dim in whole.along[name]):
        return False
    for here in machine.present(script.wiring.made[name].there.states):
        box = chunk(shape, whole.along[name], _places(whole.axes, here, machine.sizes))
        kept = [region.box for region in holdings.regions(name, machine.device(here))]
        if kept != ([box] if math.prod(shape_of(box)) else []):
            return False
    return True


def _places(
    axes: Sequence[DTensorAxis], here: Coordinates, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Where a device is along each axis, and of how many."""
    return [
        (from_digits([here[f] for f in axis.factors], [sizes[f] for f in axis.factors]), axis.size)
        for axis in axes
    ]


def chunk(shape: Sequence[int], along: Sequence[Along], places: Sequence[tuple[int, int]]) -> Box:
    """The box that DTensor's placements give a device.

    >>> chunk((7, 4), (0, None, 1), ((1, 2), (0, 3), (0, 2)))
    ((4, 7), (0, 2))
    """
    box = list(full(tuple(shape)))
    for dim, (place, ways) in zip(along, places, strict=True):
        if isinstance(dim, int):
            first, last = box[dim]
            each = -(-(last - first) // ways)
            box[dim] = (min(last, first + place * each), min(last, first + (place + 1) * each))
    return tuple(box)


def expose(executor: Executor, holdings: Holdings) -> bool:
    """Have the parameters of an executor seen as DTensors; whether they are.

    All ranks take part. Parameters that are each on one device alone stay plain tensors.
    """
    whole = said(executor.script, holdings)
    if whole is None or not _several(whole):
        return False
    names = tuple(axis.name for axis in whole.axes)
    ranks = _ranks(whole.axes, executor.script.wiring.machine.sizes)
    root = DeviceMesh(executor.device.type, ranks, mesh_dim_names=names)
    for name, piece in executor.parameters.pieces.items():
        along = whole.along[name]
        axes = [n for n, own in enumerate(along) if own != "at"]
        mesh = root if len(axes) == len(names) else root[tuple(names[n] for n in axes)]
        placements = tuple(_placement(along[n]) for n in axes)
        piece.parameter = _exposed(executor, holdings, name, mesh, placements)
    return True


def _several(whole: DTensorPlacement) -> bool:
    """Whether any parameter is on several devices."""
    return any(
        own != "at" and axis.size > 1
        for roles in whole.along.values()
        for axis, own in zip(whole.axes, roles, strict=True)
    )


def _ranks(axes: Sequence[DTensorAxis], sizes: Sequence[int]) -> Tensor:
    """Every rank at its place in the mesh."""
    ranks = torch.arange(math.prod(sizes)).view(tuple(sizes))
    order = [factor for axis in axes for factor in axis.factors]
    return ranks.permute(order).reshape([axis.size for axis in axes])


def _placement(own: Along) -> Placement:
    assert own != "at"
    return Replicate() if own is None else Shard(own)


def _exposed(
    executor: Executor,
    holdings: Holdings,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
) -> nn.Parameter:
    piece, spec = executor.parameters.pieces[name], executor.script.plan.graph.stored[name]
    box = chunk(
        spec.shape,
        [own.dim if isinstance(own, Shard) else None for own in placements],
        [(mesh.get_local_rank(n), mesh.size(n)) for n in range(mesh.ndim)],
    )
    local = piece.seen.detach().view(shape_of(box))
    whole = whole_of(local, mesh, placements, spec.shape)
    return nn.Parameter(whole, piece.seen.requires_grad)
