"""The verb `place`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, print_left_out, progress
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
    chosen_cluster,
    chosen_ranker,
    require_lines,
)

if TYPE_CHECKING:
    from meshwright.search.rank import Ranker, Ranking

SWEEP = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30, 10 << 30)
"""Payloads from 1 KiB to 10 GiB."""


def place(
    axes: AxesOption,
    reduce: Annotated[
        list[str],
        typer.Option(
            metavar="AXIS[+AXIS][=SIZE][*COUNT]",
            help="What is summed over which axes, how much and how often; repeatable.",
        ),
    ],
    cluster: ClusterOption = "gcp-a100",
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    bytes_: BytesOption = "1 GiB",
    backend: BackendOption = "nccl",
    algorithm: AlgorithmOption = "ring",
    idle: Annotated[bool, typer.Option("--idle", help="Let devices stay idle.")] = False,
    unique: Annotated[
        bool, typer.Option("--unique", help="One placement of each symmetry class.")
    ] = False,
    all_programs: Annotated[
        bool, typer.Option("--all-programs", help="Rank every program of every placement.")
    ] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="The best from 1 KiB to 10 GiB.")] = False,
    limit: LimitOption = 5,
    rules: RulesOption = "literal",
    hierarchy: HierarchyOption = "hardware",
    top: TopOption = 20,
    json: JsonOption = False,
) -> None:
    """Rank all placements of parallelism axes, each with its best reduction programs.

    Example:  meshwright place --cluster gcp-a100 --nodes 4 --axes data=4,tensor=16
    --reduce data --bytes 8GiB
    """
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import parse_bytes
    from meshwright.search.rank import Reduction, rank
    from meshwright.sharding.axes import parse_axes

    require_lines(top)
    if sweep and all_programs:
        raise InputError("--sweep and --all-programs are two different tables", "give one of them")
    machine = chosen_cluster(cluster, nodes, gpus, resize)
    ranker = chosen_ranker(machine, backend, algorithm, limit, rules, hierarchy)
    reductions = [Reduction.parse(text, parse_bytes(bytes_)) for text in reduce]
    if (sweep or all_programs) and len(reductions) > 1:
        raise InputError("--sweep and --all-programs show one reduction", "give --reduce once")
    with progress("placements") as tick:
        ranking = rank(
            ranker, parse_axes(axes), reductions, idle=idle, unique=unique, progress=tick
        )
    if sweep:
        _show_sweep(ranker, ranking, json)
    elif all_programs:
        _show_pairs(ranker, ranking, top, json)
    else:
        _show_ranking(ranker, ranking, top, json)


def _show_ranking(ranker: Ranker, ranking: Ranking, top: int, json: bool) -> None:
    from meshwright.base.quantities import counted
    from meshwright.report import documents, words
    from meshwright.report.text import drawing
    from meshwright.report.text import placements as tables

    if json:
        print_json(documents.ranking_document(ranker, ranking))
        return
    console = new_console()
    console.print(tables.table_of_placements(ranking.placements, top))
    print_left_out(console, len(ranking.placements), top, "placement")
    names = ranker.pricer.cluster.level_names
    best, reduced = ranking.best.placement, ranking.best.reductions[0].reduction.axes
    console.print()
    console.print(drawing.draw_placement(best, names, reduced, console.width))
    console.print()
    console.print(words.explain_ranking(ranking.placements, names))
    if ranking.without_program:
        left_out = counted(ranking.without_program, "placement")
        console.print(f"{left_out} left out: no program in the {ranker.kind} hierarchy.")
    if ranking.stopped == "interrupted":
        console.print("Interrupted: the best of the placements seen so far.")


def _show_sweep(ranker: Ranker, ranking: Ranking, json: bool) -> None:
    from meshwright.report import documents
    from meshwright.report.text import placements as tables
    from meshwright.search.rank import sweep

    placements = [ranked.placement for ranked in ranking.placements]
    swept = sweep(ranker, placements, ranking.best.reductions[0].reduction, SWEEP)
    if json:
        print_json(documents.sweep_document(ranker, swept))
    else:
        new_console().print(tables.table_of_sweep(swept))


def _show_pairs(ranker: Ranker, ranking: Ranking, top: int, json: bool) -> None:
    from meshwright.report import documents
    from meshwright.report.text import placements as tables
    from meshwright.search.rank import rank_pairs

    placements = [ranked.placement for ranked in ranking.placements]
    pairs = rank_pairs(ranker, placements, ranking.best.reductions[0].reduction)
    if json:
        print_json(documents.pairs_document(ranker, pairs))
    else:
        console = new_console()
        console.print(tables.table_of_pairs(pairs, top))
        print_left_out(console, len(pairs), top, "program")
