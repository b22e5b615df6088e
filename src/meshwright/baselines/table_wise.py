"""Table-wise sharding of embeddings for recommendation models (Neo, Mudigere et al. 2022). Enters:
a graph with embedding tables. Leaves: a `Plan`.

Each table lies whole on one device, the largest first, each on the device that holds the fewest
bytes; a table that is large for a device is cut over all of them, along its columns if they can be
cut, else along its rows. Everything else is data parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.base.errors import InputError
from meshwright.baselines.roles import (
    batch_factors,
    cutting,
    named_split,
    require_few,
    seat,
    with_samples,
)
from meshwright.cluster.cluster import Cluster
from meshwright.graph.families.embedding import KINDS
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, MeshFactor, factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units

ATTENDING = ("scaled_dot_product_attention", "softmax")
"""What a recommendation model does not have: its tables are what is large in it."""

LARGE = 8
"""A table is large if so many of it fill a device: with its gradient and Adam's state, half."""


def tables_on_devices(graph: OperatorGraph, cluster: Cluster) -> Plan:
    """Tables dealt over the devices, the rest data parallel."""
    require_few(cluster)
    mesh_factors, parts = factors(cluster), units(graph)
    table_of = {
        unit.name: unit.inputs[0].tensor
        for unit in parts
        if unit.members[0].call.kind in KINDS and unit.inputs
    }
    attends = any(operator.kind in ATTENDING for operator in graph.operators)
    if not table_of or attends:
        raise InputError(
            f"graph {graph.name!r} has {'attention' if attends else 'no embedding tables'}",
            "use tables on devices for recommendation models",
        )
    sizes = {name: graph.specs[name].bytes for name in table_of.values()}
    small = {name: n for name, n in sizes.items() if n * LARGE <= cluster.device.memory}
    home = greedy_table_placement(small, cluster.devices)
    batch = batch_factors(parts, range(len(mesh_factors)), mesh_factors)
    layouts = []
    for unit in parts:
        table = table_of.get(unit.name)
        if table is None:
            layouts.append(with_samples({}, unit, batch, mesh_factors))
        elif table in home:
            layouts.append(Layout(seat(home[table], mesh_factors)))
        else:
            layouts.append(with_samples(_cut(unit, mesh_factors), unit, batch, mesh_factors))
    return Plan.of("expert: tables on devices", graph, cluster, layouts)


def greedy_table_placement(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """The device of each table.

    >>> greedy_table_placement({"a": 1, "b": 3, "c": 2}, 2)
    {'b': 0, 'c': 1, 'a': 1}
    """
    held = [0] * devices
    home = {}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        device = held.index(min(held))
        home[name] = device
        held[device] += size
    return home


def _cut(unit: OpGroup, mesh_factors: Sequence[MeshFactor]) -> dict[int, str]:
    """The split, of columns or of rows, that more factors can cut."""
    roles: dict[int, str] = {}
    for name in ("channel", "vocabulary"):
        split = named_split(unit, name)
        if split is not None:
            chosen = cutting([(unit, split)], range(len(mesh_factors)), mesh_factors)
            roles = dict.fromkeys(chosen, name) if len(chosen) > len(roles) else roles
    return roles
