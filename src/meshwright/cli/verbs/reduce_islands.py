"""The verb `reduce` on a sum of islands."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshwright.cli.console import new_console, print_json, print_left_out
from meshwright.cli.shared_options import chosen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshwright.cluster.island_cluster import IslandCluster
    from meshwright.search.rank import Reduction
    from meshwright.sharding.axes import Axis


class ReduceOptions(NamedTuple):
    """How programs are priced and shown."""

    backend: str
    algorithm: str
    program: str | None
    limit: int
    top: int
    json: bool


def reduce_over_islands(
    machine: IslandCluster,
    axes: Sequence[Axis],
    reduction: Reduction,
    regular_options: Mapping[str, object],
    options: ReduceOptions,
) -> None:
    """Show the cheapest program of each way to cross, or one that is given.

    `regular_options` are options of which islands know nothing.
    """
    from meshwright.base.errors import InputError
    from meshwright.collectives.islands.cheapest_island_program import IslandPredictor
    from meshwright.collectives.islands.island_program import IslandProgram
    from meshwright.collectives.islands.island_synthesis import count_island_programs
    from meshwright.collectives.islands.island_verification import verified_islands
    from meshwright.cost.alpha_beta import Pricer
    from meshwright.cost.backend import ALGORITHMS, backend_named
    from meshwright.report.text import island_reductions as report
    from meshwright.search.rank import MOST_STEPS

    backend, algorithm, program, limit, top, json = options
    _refuse(machine, axes, reduction, regular_options)
    way, library = chosen(algorithm, ALGORITHMS, "--algorithm"), backend_named(backend)
    if way not in {"best", *(known for _, known in library.table)}:
        raise InputError(f"{backend} has no {way} algorithm", "take --algorithm ring or best")
    if not 1 <= limit <= MOST_STEPS:
        raise InputError(f"--limit is {limit}", f"give 1 to {MOST_STEPS}")
    predictor = IslandPredictor(
        machine, lambda cluster: Pricer(cluster, library, way), reduction.bytes, limit=limit
    )
    if program is not None:
        names = [island.name for island in machine.islands]
        programs = [predictor.predict(IslandProgram.parse(program, names))]
    else:
        programs = predictor.cheapest_of_each()
        verified_islands(machine, programs[0].program)
    count = 1 if program is not None else count_island_programs(machine, limit=limit)
    if json:
        print_json(report.programs_document(machine, library.name, way, reduction, programs, count))
        return
    console = new_console()
    console.print(f"{report.describe_question(machine, reduction, count)}\n")
    if len(programs) > 1:
        console.print(report.table_of_crossings(programs, top))
        print_left_out(console, len(programs), top, "way")
        console.print(f"\nThe first, step by step: {programs[0].program}\n")
    console.print(report.table_of_island_steps(programs[0]))
    if len(programs) > 1:
        console.print(f"\n{report.describe_gain(programs)}")


def _refuse(
    machine: IslandCluster,
    axes: Sequence[Axis],
    reduction: Reduction,
    regular_options: Mapping[str, object],
) -> None:
    """Refuse what only reductions on regular clusters know."""
    from meshwright.base.errors import InputError

    for option, value in regular_options.items():
        if value:
            raise InputError(
                f"--{option} is given, and {machine.name!r} is a sum of islands",
                f"leave it out, or reduce on one island ({machine.name}#{machine.islands[0].name})",
            )
    if len(axes) != 1 or axes[0].size != machine.devices or reduction.axes != (axes[0].name,):
        words = ",".join(map(str, axes))
        raise InputError(
            f"--axes {words} --reduce {'+'.join(reduction.axes)} on {machine.name!r}: over islands "
            f"all {machine.devices} devices sum up together",
            f"give --axes data={machine.devices} --reduce data, or reduce on one island "
            f"({machine.name}#{machine.islands[0].name})",
        )
