"""JAX: a mesh and a PartitionSpec for every parameter. Enters: `ExportWriting`. Leaves:
`mesh_plan.py`, which imports jax and numpy only, with MaxText's names beside.

A dim of a parameter that op groups cut along the tensor axis has "tensor"; with ZeRO 3 the first
other dim that the data axis divides has "data" (FSDP). Reductions are XLA's choice.
"""

from __future__ import annotations

import math

from meshwright.baselines.degrees.config import Axis
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.ranks import machine_level
from meshwright.plan.model import Plan
from meshwright.sharding.layout import IDLE, REPLICA, factors

SCRIPT = '''{head}
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DATA, TENSOR = {data}, {tensor}

BATCH = P("data")
"""Of inputs and targets, samples first."""

PARAMETERS = {{
{parameters}
}}
"""By the names and dims of the PyTorch model."""

MAXTEXT = {maxtext!r}
"""The same mesh in MaxText's words."""


def build_mesh(devices=None):
    """Devices in the plan's order: of the machine's factors each axis has its own."""
    devices = np.array(jax.devices() if devices is None else devices)
    devices = devices.reshape({sizes}).transpose({order}).reshape(DATA, TENSOR)
    return Mesh(devices, ("data", "tensor"))


def shardings(mesh):
    """Where each parameter lies."""
    return {{name: NamedSharding(mesh, spec) for name, spec in PARAMETERS.items()}}
'''


def write_jax(own: ExportWriting) -> Files:
    """The module."""
    machine = factors(own.plan.cluster)
    order = (*own.taken["data"], *own.taken["tensor"])
    specs = [f'    "{name}": P({_spec(spec)}),' for name, spec in partition_specs(own).items()]
    script = SCRIPT.format(
        head=own.head.rstrip(),
        data=own.config.data,
        tensor=own.config.tensor,
        parameters="\n".join(specs),
        maxtext=_maxtext(own),
        sizes=tuple(size for _, size in machine) or (1,),
        order=order or (0,),
    )
    return {"mesh_plan.py": script}


def _spec(spec: tuple[str | None, ...]) -> str:
    return ", ".join("None" if axis is None else f'"{axis}"' for axis in spec)


def partition_specs(own: ExportWriting) -> dict[str, tuple[str | None, ...]]:
    """For each parameter the axis of each dim."""
    cut, config = tensor_dims(own.written, own.taken["tensor"]), own.config
    found: dict[str, tuple[str | None, ...]] = {}
    for parameter in own.graph.parameters:
        extents = [extent for _, extent in parameter.tensor.dims]
        spec: list[str | None] = [None] * len(extents)
        dim = cut.get(parameter.tensor.name)
        if dim is not None and extents[dim] % config.tensor == 0:
            spec[dim] = "tensor"
        if config.zero == 3 and config.data > 1:
            free = (n for n, extent in enumerate(extents) if spec[n] is None)
            whole = next((n for n in free if extents[n] % config.data == 0), None)
            if whole is not None:
                spec[whole] = "data"
        found[parameter.tensor.name] = tuple(spec)
    return found


def left_whole(own: ExportWriting) -> tuple[str, ...]:
    """Parameters that the tensor axis should cut and JAX, which cuts equal pieces only, cannot."""
    cut, shapes = tensor_dims(own.written, own.taken["tensor"]), own.graph.specs
    return tuple(n for n, dim in cut.items() if shapes[n].shape[dim] % own.config.tensor)


def tensor_dims(written: Plan, taken: tuple[int, ...]) -> dict[str, int]:
    """The dim of each parameter that the tensor axis cuts."""
    parameters = {own.tensor.name for own in written.graph.parameters}
    found: dict[str, int] = {}
    for unit in written.units:
        roles = {written.layout[unit.name].roles[factor] for factor in taken}
        role = roles.pop() if len(roles) == 1 else REPLICA
        names = [split.name for split in unit.splits]
        if role == REPLICA or role.startswith(IDLE):
            continue
        for port in unit.inputs:
            state = port.there[names.index(role)]
            if port.tensor in parameters and state >= 0:
                found[port.tensor] = state
    return found


def _maxtext(own: ExportWriting) -> dict[str, int]:
    """Axes inside a machine (ici) and across machines (dcn)."""
    outside = machine_level(own.plan.cluster)
    machine = factors(own.plan.cluster)
    data = "fsdp" if own.config.zero == 3 else "data"
    names: dict[Axis, str] = {"tensor": "tensor", "data": data}
    found: dict[str, int] = {}
    for axis, name in names.items():
        for kind, inside in (("ici", True), ("dcn", False)):
            ways = math.prod(
                machine[f].size for f in own.taken[axis] if (machine[f].level >= outside) == inside
            )
            found[f"{kind}_{name}_parallelism"] = ways
    return found
