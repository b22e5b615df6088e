"""The verb `reduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, print_left_out
from meshwright.cli.shared_options import (
    AlgorithmOption,
    AxesOption,
    BackendOption,
    BytesOption,
    ClusterOption,
    GpusOption,
    HierarchyOption,
    JsonOption,
    LimitOption,
    NodesOption,
    ResizeOption,
    RulesOption,
    TopOption,
    chosen_machine,
    chosen_ranker,
    require_lines,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshwright.collectives.dsl import Program
    from meshwright.collectives.hierarchy import Hierarchy
    from meshwright.collectives.predict import PricedProgram


def reduce(
    axes: AxesOption,
    reduce: Annotated[
        list[str],
        typer.Option(metavar="AXIS[+AXIS]", help="The axes that are summed over; give it once."),
    ],
    matrix: Annotated[
        str | None, typer.Option(help="The placement, as '[[1 4] [4 4]]'; the best by default.")
    ] = None,
    cluster: ClusterOption = "gcp-a100",
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    bytes_: BytesOption = "1 GiB",
    backend: BackendOption = "nccl",
    algorithm: AlgorithmOption = "ring",
    idle: Annotated[bool, typer.Option("--idle", help="Let devices stay idle.")] = False,
    program: Annotated[
        str | None, typer.Option(help="Show this program only, in the text form of --json.")
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="Print a torch.distributed script of the program.")
    ] = False,
    limit: LimitOption = 5,
    rules: RulesOption = "literal",
    hierarchy: HierarchyOption = "hardware",
    top: TopOption = 20,
    json: JsonOption = False,
) -> None:
    """Show the reduction programs of one placement, or one program as a torch script.

    Of a sum of islands: the cheapest program for each way to cross, over groups of unequal size.

    Example:  meshwright reduce --nodes 2 --gpus 4 --axes data=8 --reduce data --torch
    """
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import parse_bytes
    from meshwright.cluster.cluster import Cluster
    from meshwright.collectives.dsl import Program
    from meshwright.collectives.predict import predict
    from meshwright.report import documents
    from meshwright.search.rank import Reduction, rank
    from meshwright.sharding.axes import fitted, parse_axes
    from meshwright.sharding.placement import Placement, parse_matrix

    require_lines(top)
    if len(reduce) > 1:
        raise InputError(
            f"--reduce was given {len(reduce)} times",
            "give it once, with axes that are summed together as A+B",
        )
    if torch and json:
        raise InputError("--torch and --json are two different outputs", "give one of them")
    machine = chosen_machine(cluster, nodes, gpus, resize, None, None)
    if not isinstance(machine, Cluster):
        from meshwright.cli.verbs.reduce_islands import ReduceOptions, reduce_over_islands

        reduce_over_islands(
            machine,
            parse_axes(axes),
            Reduction.parse(reduce[0], parse_bytes(bytes_)),
            {"matrix": matrix, "idle": idle, "torch": torch}
            | {"rules": rules != "literal", "hierarchy": hierarchy != "hardware"},
            ReduceOptions(backend, algorithm, program, limit, top, json),
        )
        return
    ranker = chosen_ranker(machine, backend, algorithm, limit, rules, hierarchy)
    reduction = Reduction.parse(reduce[0], parse_bytes(bytes_))
    named = parse_axes(axes)
    if matrix is None:
        placement = rank(ranker, named, [reduction], idle=idle).best.placement
    else:
        placement = Placement(fitted(named, machine, idle), parse_matrix(matrix)).on(machine)
    levels = ranker.hierarchy(placement, reduction.axes)
    if program is not None:
        programs = [predict(levels, Program.parse(program), ranker.pricer, reduction.bytes)]
    elif torch:
        programs = [ranker.price(placement, reduction).best]
    else:
        programs = ranker.priced_programs(placement, reduction)
    if torch:
        _show_script(levels, programs[0].program)
    elif json:
        print_json(documents.programs_document(ranker, placement, reduction, programs))
    else:
        _show_programs(f"{placement} on {machine.name}, {reduction}", programs, top)


def _show_programs(heading: str, programs: Sequence[PricedProgram], top: int) -> None:
    from meshwright.base.quantities import counted
    from meshwright.report.text import placements as tables

    console = new_console()
    console.print(f"{heading}: {counted(len(programs), 'program')}\n")
    if len(programs) > 1:
        console.print(tables.table_of_programs(programs, top))
        print_left_out(console, len(programs), top, "program")
        console.print(f"\nThe first, step by step: {programs[0].program}\n")
    console.print(tables.table_of_steps(programs[0]))


def _show_script(levels: Hierarchy, program: Program) -> None:
    from meshwright.collectives.lowering import lower_program, reduction_groups
    from meshwright.collectives.verify import verified
    from meshwright.report.text.reduction_script import torch_script

    steps, groups = lower_program(levels, verified(levels, program)), reduction_groups(levels)
    print(torch_script(program, steps, groups, levels.placement.devices), end="")
