"""Lowering of programs over unequal groups. Enters: islands by their hierarchies, a program.
Leaves: its steps as device groups with the chunks that each acts on, and how large chunks are.

Devices are numbered island by island. Chunks are the common refinement of all cuts: a boundary at
every multiple of 1 / n_i for islands of n_i devices (and of 1 / Σ n_i where everybody scatters), so
that there are at most Σ n_i of them however large lcm(n_1, ..., n_k) is; they are not equally
large, and `weights` says how large. Where a crossing scatters, each is cut again, into as many as
islands, so that each island has its part of every chunk. A chunk before this last cut is a block:

    across     for each block, the first, second, ... holders of it in all islands
    leaders    for each block, the first devices of all islands
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.islands.island_program import IslandCrossing, IslandProgram
from meshwright.collectives.lowering import Groups, LoweredStep, SharedStep, instruction_groups
from meshwright.collectives.recipe import Pieces, replayed
from meshwright.cost.collective import Collective

IslandStep = LoweredStep | SharedStep


class LoweredIslands(NamedTuple):
    """A program as device groups."""

    steps: tuple[IslandStep, ...]
    weights: tuple[int, ...]
    """How large each chunk is."""


def common_chunks(sizes: Sequence[int]) -> tuple[int, ...]:
    """The chunks into which cuts into so many equal parts divide a whole together.

    >>> common_chunks([4, 2]), common_chunks([3, 2])
    ((1, 1, 1, 1), (2, 1, 1, 2))
    """
    whole = math.lcm(*sizes)
    ends = sorted({whole // size * number for size in sizes for number in range(size + 1)})
    return tuple(last - first for first, last in pairwise(ends))


def lower_island_program(islands: Sequence[Hierarchy], program: IslandProgram) -> LoweredIslands:
    """The program as device groups.

    >>> from meshwright.collectives.islands.island_synthesis import hierarchy_of
    >>> nodes = [hierarchy_of(["gpu"], [size]) for size in (3, 2)]
    >>> scatter, gather = "root.InsideGroup.ReduceScatter", "root.InsideGroup.AllGather"
    >>> text = f"[a: {scatter} | b: {scatter}]; across.AllReduce; [a: {gather} | b: {gather}]"
    >>> program = IslandProgram.parse(text, ("a", "b"))
    >>> steps, weights = lower_island_program(nodes, program)
    >>> weights
    (2, 1, 1, 2)
    >>> steps[2].groups, steps[2].chunks
    (((0, 3), (1, 3), (1, 4), (2, 4)), ((0,), (1,), (2,), (3,)))
    """
    return _Lowering(islands, program).lowered()


class _Lowering:
    def __init__(self, islands: Sequence[Hierarchy], program: IslandProgram) -> None:
        self._program = program
        self._hierarchies = islands
        self._members: list[tuple[int, ...]] = []
        for hierarchy in islands:
            first = sum(map(len, self._members))
            self._members.append(tuple(range(first, first + hierarchy.placement.devices)))
        devices = sum(map(len, self._members))
        scatters = {
            crossing
            for crossing in program.crossings
            if crossing.collective is Collective.REDUCE_SCATTER
        }
        everybody = any(scatter.form == "everybody" for scatter in scatters)
        blocks = common_chunks([*map(len, self._members), *([devices] if everybody else [])])
        self._parts = len(islands) if scatters and not everybody else 1
        self._weights = tuple(weight for weight in blocks for _ in range(self._parts))
        if self._parts == 1 and everybody and len(scatters) > 1:
            raise InputError(
                f"{str(program)!r} scatters twice", "give a program that 'meshwright reduce' lists"
            )
        every: Pieces = tuple(range(len(self._weights)))
        self._holds = dict.fromkeys(range(devices), every)
        self._steps: list[IslandStep] = []

    def lowered(self) -> LoweredIslands:
        """All steps, in order."""
        for number, phase in enumerate(self._program.phases):
            if number:
                self._add(self._crossing(self._program.crossings[number - 1]))
            for program, hierarchy, members in zip(
                phase, self._hierarchies, self._members, strict=True
            ):
                for instruction in program.instructions:
                    groups = instruction_groups(hierarchy, instruction)
                    moved = tuple(tuple(d + members[0] for d in group) for group in groups)
                    self._add(LoweredStep(instruction.collective, moved))
        return LoweredIslands(tuple(self._steps), self._weights)

    def _add(self, step: IslandStep) -> None:
        self._steps.append(step)
        replayed(step, self._holds, self._weights)

    def _crossing(self, crossing: IslandCrossing) -> IslandStep:
        if crossing.form == "everybody":
            return LoweredStep(crossing.collective, (tuple(self._holds),))
        leaders = tuple(members[0] for members in self._members)
        if crossing.form == "leaders" and crossing.collective is Collective.BROADCAST:
            return LoweredStep(crossing.collective, (leaders,))
        groups: list[tuple[int, ...]] = []
        chunks: list[Pieces] = []
        holding = self._holders(crossing)
        for block in range(0, len(self._weights), self._parts):
            pieces: Pieces = tuple(range(block, block + self._parts))
            per_island = [self._of_block(members, pieces) for members in holding]
            if len({*map(len, per_island)}) > 1:
                counts = [*map(len, per_island)]
                raise InputError(
                    f"{crossing} joins the holders of a piece, and islands have {counts} of them",
                    "give a program that 'meshwright reduce' lists",
                )
            for group in zip(*per_island, strict=True):
                groups.append(group)
                chunks.append(pieces)
        return SharedStep(crossing.collective, tuple(groups), tuple(chunks))

    def _holders(self, crossing: IslandCrossing) -> list[dict[int, frozenset[int]]]:
        """Of each island, what the devices that take part hold."""
        return [
            {
                device: frozenset(self._holds[device])
                for device in (members if crossing.form == "across" else members[:1])
            }
            for members in self._members
        ]

    def _of_block(self, holding: dict[int, frozenset[int]], block: Pieces) -> list[int]:
        return [device for device, held in holding.items() if not held.isdisjoint(block)]


def everybody(islands: Sequence[Hierarchy]) -> Groups:
    """The one reduction group."""
    return (tuple(range(sum(hierarchy.placement.devices for hierarchy in islands))),)
