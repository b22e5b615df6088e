"""JAX export: a Mesh and a PartitionSpec for every parameter. Enters: `ExportWriting`. Leaves:
`mesh_plan.py`, which imports jax and numpy only, with MaxText's names beside.

A dim of a parameter that op groups cut along the tensor axis has "tensor"; with ZeRO 3 the first
other dim that the data axis divides has "data" (FSDP). Reductions are XLA's choice.
"""

from __future__ import annotations

import math

from meshwright.baselines.degrees.parallel_config import Axis
from meshwright.export.exported import ExportWriting, Files
from meshwright.export.rank_files import machine_level
from meshwright.plan.plan import Plan
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


def write_jax(writing: ExportWriting) -> Files:
    """The module."""
    machine = factors(writing.plan.cluster)
    order = (*writing.taken["data"], *writing.taken["tensor"])
    specs = [f'    "{name}": P({_spec(spec)}),' for name, spec in partition_specs(writing).items()]
    script = SCRIPT.format(
        head=writing.head.rstrip(),
        data=writing.config.data,
        tensor=writing.config.tensor,
        parameters="\n".join(specs),
        maxtext=_maxtext(writing),
        sizes=tuple(size for _, size in machine) or (1,),
        order=order or (0,),
    )
    return {"mesh_plan.py": script}


def _spec(spec: tuple[str | None, ...]) -> str:
    return ", ".join("None" if axis is None else f'"{axis}"' for axis in spec)


def partition_specs(writing: ExportWriting) -> dict[str, tuple[str | None, ...]]:
    """For each parameter the axis of each dim."""
    cut, config = tensor_parallel_dims(writing.written, writing.taken["tensor"]), writing.config
    specs: dict[str, tuple[str | None, ...]] = {}
    for parameter in writing.graph.parameters:
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
        specs[parameter.tensor.name] = tuple(spec)
    return specs


def indivisible_parameters(writing: ExportWriting) -> tuple[str, ...]:
    """Parameters that the tensor axis should cut and JAX, which cuts equal pieces only, cannot."""
    cut, shapes = (
        tensor_parallel_dims(writing.written, writing.taken["tensor"]),
        writing.graph.specs,
    )
    return tuple(n for n, dim in cut.items() if shapes[n].shape[dim] % writing.config.tensor)


def tensor_parallel_dims(written: Plan, taken: tuple[int, ...]) -> dict[str, int]:
    """The dim of each parameter that the tensor axis cuts."""
    parameters = {parameter.tensor.name for parameter in written.graph.parameters}
    dims: dict[str, int] = {}
    for unit in written.units:
        roles = {written.layout[unit.name].roles[factor] for factor in taken}
        role = roles.pop() if len(roles) == 1 else REPLICA
        names = [split.name for split in unit.splits]
        if role == REPLICA or role.startswith(IDLE):
            continue
        for port in unit.inputs:
            state = port.forward[names.index(role)]
            if port.tensor in parameters and state >= 0:
                dims[port.tensor] = state
    return dims


def _maxtext(writing: ExportWriting) -> dict[str, int]:
    """Axes inside a machine (ici) and across machines (dcn)."""
    outside = machine_level(writing.plan.cluster)
    machine = factors(writing.plan.cluster)
    data = "fsdp" if writing.config.zero == 3 else "data"
    names: dict[Axis, str] = {"tensor": "tensor", "data": data}
    degrees: dict[str, int] = {}
    for axis, name in names.items():
        for kind, inside in (("ici", True), ("dcn", False)):
            ways = math.prod(
                machine[f].size
                for f in writing.taken[axis]
                if (machine[f].level >= outside) == inside
            )
            degrees[f"{kind}_{name}_parallelism"] = ways
    return degrees
