"""Parameters as DTensors. Enters: an executor. Leaves: for each of its pieces a parameter that
PyTorch's own functions (clipping, GradScaler, checkpoints, state dicts, LAMB) understand.

The DeviceMesh has the axes of the plan's parameters (`lower.parameter_axes`). Along one a parameter
is `Shard(d)`, as its operator or ZeRO cuts it; else `Replicate`; where it is only at one coordinate
(stages) it lies on the sub-mesh there.

DTensor cuts axis after axis, in the mesh's order, into chunks of ceil(n / ways). What lies
otherwise (cuts of operators along two axes that leave shorter shards in the middle, say) it cannot:
    sayable(plan)  <=>  for every parameter and every device,
                        the box that DTensor says is the box that is kept.
A plan that is not is refused: one call on DTensors and plain pieces fails in PyTorch, and norms and
dims of plain pieces are wrong without a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from meshwright.base.errors import InputError
from meshwright.base.integers import from_digits
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import full, shape_of
from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.ownership import Holdings
from meshwright.lower.parameter_axes import (
    Along,
    DimCut,
    ParameterAxes,
    ParameterAxis,
    parameter_axes,
)
from meshwright.lower.script import Script
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import whole_of
from meshwright.run.state.dtensor_calls import mark_as_planned

ALONE = "alone"
"""A mesh dim of one device, for parameters that are on one device only beside others."""


def mesh_of(script: Script) -> ParameterAxes:
    """The mesh of a plan's parameters, with an axis for those that are on one device alone."""
    mesh = parameter_axes(
        script.parallel,
        {parameter.name: parameter.shards for b in script.buckets for parameter in b.parameters},
    )
    if not any(all(role == "at" for role in roles) for roles in mesh.along.values()):
        return mesh
    along = {name: (*roles, None) for name, roles in mesh.along.items()}
    return ParameterAxes((*mesh.axes, ParameterAxis(ALONE, (), 1)), along)


def unsupported_by_dtensor(script: Script, holdings: Holdings, mesh: ParameterAxes) -> str | None:
    """The first parameter of which DTensor's cuts are not those of the plan on every device."""
    return next(
        (name for name in mesh.along if not _agrees(script, holdings, mesh, name)),
        None,
    )


def _agrees(script: Script, holdings: Holdings, mesh: ParameterAxes, name: str) -> bool:
    machine = script.parallel.machine
    shape = script.plan.graph.stored[name].shape
    for coordinates in machine.present(script.parallel.made[name].forward.states):
        box = chunk(shape, mesh.along[name], _places(mesh.axes, coordinates, machine.sizes))
        kept = [region.box for region in holdings.regions(name, machine.device(coordinates))]
        if kept != ([box] if math.prod(shape_of(box)) else []):
            return False
    return True


def _places(
    axes: Sequence[ParameterAxis], coordinates: Coordinates, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Where a device is along each axis, and of how many."""
    return [
        (
            from_digits([coordinates[f] for f in axis.factors], [sizes[f] for f in axis.factors]),
            axis.size,
        )
        for axis in axes
    ]


def chunk(shape: Sequence[int], along: Sequence[Along], places: Sequence[tuple[int, int]]) -> Box:
    """The box that DTensor's placements give a device.

    >>> chunk((7, 4), (DimCut(0, False), None, DimCut(1, True)), ((1, 2), (0, 3), (0, 2)))
    ((4, 7), (0, 2))
    """
    box = list(full(tuple(shape)))
    for role, (place, ways) in zip(along, places, strict=True):
        if isinstance(role, DimCut):
            first, last = box[role.dim]
            each = -(-(last - first) // ways)
            box[role.dim] = (min(last, first + place * each), min(last, first + (place + 1) * each))
    return tuple(box)


def expose_as_dtensors(executor: Executor, holdings: Holdings) -> None:
    """Have the parameters of an executor seen as DTensors, or refuse its plan.

    All ranks take part. Parameters that are each on one device alone stay plain tensors.
    """
    mesh = mesh_of(executor.script)
    if not _several(mesh):
        return
    culprit = unsupported_by_dtensor(executor.script, holdings, mesh)
    if culprit is not None:
        raise InputError(
            f"the plan's pieces of parameter {culprit!r} are no chunks of its dims, axis by axis "
            "of a device mesh, as DTensors are; of plain pieces norms, p.dim() and state dicts of "
            "PyTorch's are wrong",
            "plan without the uneven split, or, for a loop that clips by model.clip_grad_norm_ and "
            "saves by model.save, give parallelize(..., dtensors=False)",
        )
    names = tuple(axis.name for axis in mesh.axes)
    ranks = _ranks(mesh.axes, executor.script.parallel.machine.sizes)
    root = DeviceMesh(executor.device.type, ranks, mesh_dim_names=names)
    for name, piece in executor.parameters.pieces.items():
        along = mesh.along[name]
        axes = [n for n, role in enumerate(along) if role != "at"]
        inside = root if len(axes) == len(names) else root[tuple(names[n] for n in axes)]
        placements = tuple(_placement(along[n]) for n in axes)
        piece.parameter = _exposed(executor, name, inside, placements)


def _several(mesh: ParameterAxes) -> bool:
    """Whether any parameter is on several devices."""
    return any(
        role != "at" and axis.size > 1
        for roles in mesh.along.values()
        for axis, role in zip(mesh.axes, roles, strict=True)
    )


def _ranks(axes: Sequence[ParameterAxis], sizes: Sequence[int]) -> Tensor:
    """Every rank at its place in the mesh."""
    ranks = torch.arange(math.prod(sizes)).view(tuple(sizes))
    order = [factor for axis in axes for factor in axis.factors]
    return ranks.permute(order).reshape([axis.size for axis in axes])


def _placement(role: Along) -> Placement:
    assert role != "at"
    return Replicate() if role is None else Shard(role.dim)


def _exposed(
    executor: Executor, name: str, mesh: DeviceMesh, placements: Sequence[Placement]
) -> nn.Parameter:
    piece, spec = executor.parameters.pieces[name], executor.script.plan.graph.stored[name]
    box = chunk(
        spec.shape,
        [
            DimCut(placement.dim, False) if isinstance(placement, Shard) else None
            for placement in placements
        ],
        [(mesh.get_local_rank(n), mesh.size(n)) for n in range(mesh.ndim)],
    )
    local = piece.seen.detach().view(shape_of(box))
    whole = whole_of(local, mesh, placements, spec.shape)
    parameter = nn.Parameter(whole, piece.seen.requires_grad)
    mark_as_planned(parameter)
    return parameter
