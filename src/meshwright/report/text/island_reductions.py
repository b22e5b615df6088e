"""Reduction programs over unequal groups as tables and documents. Enters: priced programs. Leaves:
what `reduce` shows of a sum of islands; every time in it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.base.quantities import counted, format_bytes, format_count, format_seconds
from meshwright.cluster.island_cluster import IslandCluster, levels_text
from meshwright.collectives.islands.cheapest_island_program import (
    IslandStepPrice,
    PricedIslandProgram,
)
from meshwright.collectives.islands.island_program import IslandCrossing
from meshwright.cost.collective import Collective
from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.search.rank import Reduction

ONE = (IslandCrossing("everybody", Collective.ALL_REDUCE),)
"""The crossings of the program that everybody knows: one AllReduce over all devices."""


def describe_question(machine: IslandCluster, reduction: Reduction, count: int) -> str:
    """What was asked, and how many programs there are."""
    islands = " + ".join(
        f"{island.name} ({levels_text(island.cluster)})" for island in machine.islands
    )
    number = counted(count, "program") if count < 10**6 else f"{format_count(count)}programs"
    return f"{islands}, {reduction}: {number}"


def describe_program(priced: PricedIslandProgram) -> str:
    """What a program does, in a few words."""
    return " → ".join(map(str, priced.program.crossings))


def table_of_crossings(programs: Sequence[PricedIslandProgram], most: int) -> Table:
    """The cheapest program for each way to cross."""
    table = new_table("#>", "crossings~", "steps>", "predicted>", "paced by")
    for number, priced in enumerate(programs[:most], start=1):
        steps, time = str(len(priced.program)), format_seconds(priced.seconds)
        slowest = max(_every(priced), key=lambda step: step.seconds)
        table.add_row(
            str(number), describe_program(priced), steps, time, f"{slowest.island} {slowest.link}"
        )
    return table


def table_of_island_steps(priced: PricedIslandProgram) -> Table:
    """One program, step by step; steps of one number run side by side."""
    table = new_table("step>", "island", "instruction", "holds before>", "predicted>", "paced by")
    number = 0
    for stage in priced.stages:
        for steps in stage:
            for place, step in enumerate(steps, start=number + 1):
                held, time = format_bytes(round(step.held)), format_seconds(step.seconds)
                table.add_row(str(place), step.island, str(step.instruction), held, time, step.link)
        number += max(map(len, stage))
    return table


def describe_gain(programs: Sequence[PricedIslandProgram]) -> str:
    """The best program against one AllReduce over everybody."""
    best = programs[0]
    single = next((priced for priced in programs if priced.program.crossings == ONE), None)
    if single is None or single is best:
        return "No program is faster than a single AllReduce over all devices."
    ratio = single.seconds / best.seconds
    return (
        f"It is {ratio:.3g}x as fast as a single AllReduce over all devices "
        f"({format_seconds(single.seconds)})."
    )


def programs_document(
    machine: IslandCluster,
    backend: str,
    algorithm: str,
    reduction: Reduction,
    programs: Sequence[PricedIslandProgram],
    count: int,
) -> Document:
    """`reduce --json` of a sum of islands."""
    return {
        "cluster": machine.name,
        "islands": {island.name: island.cluster.hierarchy for island in machine.islands},
        "backend": backend,
        "algorithm": algorithm,
        "reduction": {
            "reduce": reduction.axes,
            "bytes": reduction.bytes,
            "count": reduction.count,
        },
        "count": count,
        "programs": [
            {
                "program": str(priced.program),
                "predicted_s": priced.seconds,
                "steps": [
                    {
                        "island": step.island,
                        "instruction": str(step.instruction),
                        "held_bytes": step.held,
                        "predicted_s": step.seconds,
                        "link": step.link,
                    }
                    for step in _every(priced)
                ],
            }
            for priced in programs
        ],
    }


def _every(priced: PricedIslandProgram) -> list[IslandStepPrice]:
    return [step for stage in priced.stages for part in stage for step in part]
