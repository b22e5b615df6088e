"""GNMT's layer-wise model parallelism for recurrent networks (Wu et al. 2016), with DP. Enters: a
graph with recurrent layers. Leaves: a `Plan`.

Machines are data parallel; inside one, layers of equal depth sit on one device. The depth of a
layer with weights is one more than that of what it reads, of a recurrent one than that of its input
(not of its state), so that an encoder and a decoder lie side by side; everything else is as deep as
what it reads. Steps of a layer share its weights, and so its depth. Each depth has a device of its
own; if there are too few, contiguous depths of about equal work share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.baselines.layer_stages import contiguous
from meshwright.baselines.roles import (
    batch_factors,
    intra_machine_factors,
    seat,
    with_samples,
    work,
)
from meshwright.cluster.cluster import Cluster
from meshwright.graph.families.recurrent import KINDS
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units


def layers_on_devices(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Data parallel across machines, layers on devices inside."""
    if not any(operator.kind in KINDS for operator in graph.operators):
        raise InputError(
            f"graph {graph.name!r} has no recurrent layers",
            "use layers on devices for recurrent networks",
        )
    mesh_factors, parts = factors(cluster), units(graph)
    inside = intra_machine_factors(cluster)
    across = [factor for factor in range(len(mesh_factors)) if factor not in inside]
    batch = batch_factors(parts, across, mesh_factors)
    depth = depths(graph, parts)
    loads = [0] * (max(depth) + 1)
    for unit, level in zip(parts, depth, strict=True):
        loads[level] += work(unit)
    room = [mesh_factors[factor] for factor in inside]
    device = contiguous(loads, math.prod(factor.size for factor in room))
    layouts = []
    for unit, level in zip(parts, depth, strict=True):
        roles = dict(zip(inside, seat(device[level], room), strict=True))
        layouts.append(with_samples(roles, unit, batch, mesh_factors))
    return Plan.of("expert: layers on devices", graph, cluster, layouts)


def depths(graph: OperatorGraph, parts: Sequence[OpGroup]) -> list[int]:
    """How deep each unit lies."""
    weights = {parameter.tensor.name for parameter in graph.parameters}
    operators = {operator.name: operator for operator in graph.operators}
    depth_of: dict[str, int] = {}
    layer: dict[frozenset[str], int] = {}
    unit_depths: list[int | None] = []
    for unit in parts:
        anchor = operators[unit.name]
        reads = {boundary.tensor for boundary in unit.inputs}
        parameters = frozenset(reads & weights)
        data = {anchor.inputs[0]} if anchor.kind in KINDS else reads - weights
        before = max((depth_of[name] for name in data if name in depth_of), default=None)
        depth = before
        if parameters:
            depth = layer.setdefault(parameters, 0 if before is None else before + 1)
        unit_depths.append(depth)
        if depth is not None:
            depth_of.update((boundary.tensor, depth) for boundary in unit.outputs)
    return _with_sources(parts, unit_depths)


def _with_sources(parts: Sequence[OpGroup], depths: Sequence[int | None]) -> list[int]:
    """What reads nothing that was made, as zeros, lies where it is first needed."""
    settled = list(depths)
    readers: dict[str, list[int]] = {}
    for number in reversed(range(len(parts))):
        unit = parts[number]
        if settled[number] is None:
            consumers = [n for boundary in unit.outputs for n in readers.get(boundary.tensor, ())]
            settled[number] = min((settled[n] or 0 for n in consumers), default=0)
        for boundary in unit.inputs:
            readers.setdefault(boundary.tensor, []).append(number)
    return [depth or 0 for depth in settled]
