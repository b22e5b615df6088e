"""Liveness analysis: the last use of each value in a rank's instructions. Enters: its instructions,
and what the segments among them take and make. Leaves: for each instruction the values that nobody
needs after it.

It does not know the values themselves, nor how they travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshwright.lower.parallel_graph import ParallelGraph
from meshwright.lower.script import Instruction
from meshwright.run.exec.segment_execution import Compiled

Key = tuple[str, str | int, int]
"""A tensor by its name, or a delivery by its number; and a micro-batch."""

Segments = Callable[[int, int], Compiled]
"""A segment by its number and micro-batch."""


def source(parallel: ParallelGraph, delivery: int, micro: int) -> Key:
    """Under which key the value of a delivery is."""
    carried = parallel.deliveries[delivery]
    if parallel.made[carried.tensor].parameter:
        return "delivery", delivery, 0
    return ("delivery", delivery, micro) if carried.steps else ("tensor", carried.tensor, micro)


def last_uses(
    parallel: ParallelGraph, instructions: Sequence[Instruction], segments: Segments
) -> list[list[Key]]:
    """For each instruction the values that nobody needs after it."""
    dropped: list[list[Key]] = [[] for _ in instructions]
    needed: set[Key] = set()
    for number in range(len(instructions) - 1, -1, -1):
        instruction = instructions[number]
        for key in _writes(instruction, segments):
            if key not in needed:
                dropped[number].append(key)
            needed.discard(key)
        for key in _reads(parallel, instruction, segments):
            if key not in needed:
                needed.add(key)
                dropped[number].append(key)
    return dropped


def _writes(instruction: Instruction, segments: Segments) -> Iterator[Key]:
    if instruction.kind == "Carry":
        yield "delivery", instruction.number, instruction.micro_batch
    elif instruction.kind == "Run":
        for name, _ in segments(instruction.number, instruction.micro_batch).outputs:
            yield "tensor", name, instruction.micro_batch


def _reads(parallel: ParallelGraph, instruction: Instruction, segments: Segments) -> Iterator[Key]:
    if instruction.kind == "Carry":
        yield "tensor", parallel.deliveries[instruction.number].tensor, instruction.micro_batch
    elif instruction.kind == "Run":
        for leaf, _ in segments(instruction.number, instruction.micro_batch).leaves:
            yield source(parallel, leaf.delivery, instruction.micro_batch)
