"""Lowering of reduction programs to device groups. Enters: a program and its hierarchy. Leaves: for
each step the collective and the groups of device numbers it runs over, each group in ascending
order, its root first.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.collectives.dsl import Program, ReductionInstruction
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.cost.collective import Collective
from meshwright.cost.pattern import groups

Groups = tuple[tuple[int, ...], ...]


class LoweredStep(NamedTuple):
    """A collective over disjoint groups of devices; other devices keep what they have."""

    collective: Collective
    groups: Groups


class SharedStep(NamedTuple):
    """A collective over groups that may share devices, each acting on some chunks only.

    No two groups of a device act on the same.
    """

    collective: Collective
    groups: Groups
    chunks: tuple[tuple[int, ...], ...]
    """Of each group."""


def lower_program(hierarchy: Hierarchy, program: Program) -> tuple[LoweredStep, ...]:
    """The program as device groups.

    >>> from meshwright import Cluster, Placement, reduction_hierarchy
    >>> from meshwright.sharding.axes import Axis
    >>> placement = Placement((Axis("data", 4), Axis("tensor", 2)), ((2, 2), (1, 2)))
    >>> cluster = Cluster.named("gcp-a100", node=2, gpu=4)
    >>> hierarchy = reduction_hierarchy(cluster, placement, ["data"])
    >>> program = Program.parse("node.InsideGroup.Reduce; node.Master(root).AllReduce")
    >>> for step in lower_program(hierarchy, program):
    ...     print(step.collective.value, step.groups)
    Reduce ((0, 2), (1, 3), (4, 6), (5, 7))
    AllReduce ((0, 4), (1, 5))
    """
    return tuple(
        LoweredStep(instruction.collective, instruction_groups(hierarchy, instruction))
        for instruction in program.instructions
    )


def instruction_groups(hierarchy: Hierarchy, instruction: ReductionInstruction) -> Groups:
    """The groups of devices that an instruction makes."""
    varied, first = (
        [factor for i in levels for factor in hierarchy.levels[i].factors]
        for levels in hierarchy.span(instruction.slice, instruction.form)
    )
    return tuple(groups(hierarchy.pattern(varied, first)))


def reduction_groups(hierarchy: Hierarchy) -> Groups:
    """The devices that reduce together, from the placement alone: they differ on no other axis."""
    together: dict[tuple[int, ...], list[int]] = {}
    placement = hierarchy.placement
    for device in range(placement.devices):
        shard = placement.shard(device)
        if placement.works(shard):
            fixed = tuple(i for axis, i in enumerate(shard) if axis not in hierarchy.reduce)
            together.setdefault(fixed, []).append(device)
    return tuple(tuple(devices) for devices in together.values())
