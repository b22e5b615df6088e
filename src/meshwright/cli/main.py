"""The verbs. Each parses its options, calls one room and hands the result to `report`.

Rooms are imported inside the verbs, so that help costs nothing. Exit codes: 0 done, 2 a mistake
in what was given (one sentence on standard error), 130 interrupted with nothing to show.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import (
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
    chosen,
    chosen_cluster,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from meshwright.cluster.model import Cluster
    from meshwright.search.rank import Ranker

PIPED_WIDTH = 160

app = typer.Typer(
    name="meshwright",
    help="Plan distributed training on hierarchical clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
validate_app = typer.Typer(
    help="Hold predictions against published measurements.", no_args_is_help=True
)
app.add_typer(validate_app, name="validate")


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    from meshwright.foundation.errors import InputError

    try:
        app()
    except InputError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("meshwright: interrupted before there was anything to show", file=sys.stderr)
        raise SystemExit(130) from None


@app.command()
def clusters(
    name: Annotated[str | None, typer.Argument(help="Draw this one.")] = None,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a cluster file.")] = False,
    json: JsonOption = False,
) -> None:
    """List the catalogue of clusters, or draw one.

    Example:  meshwright clusters gcp-v100
    """
    from meshwright.cluster.catalogue import catalogue_names, catalogued
    from meshwright.cluster.toml import dump_cluster
    from meshwright.report.documents import cluster_document
    from meshwright.report.drawing import draw_cluster
    from meshwright.report.tables import table_of_clusters

    if name is None:
        everything = [catalogued(known) for known in catalogue_names()]
        if json:
            _print_json({"clusters": [cluster_document(cluster) for cluster in everything]})
        else:
            _console().print(table_of_clusters(everything))
        return
    cluster = chosen_cluster(name, nodes, gpus, resize)
    if toml:
        print(dump_cluster(cluster), end="")
    elif json:
        _print_json(cluster_document(cluster))
    else:
        print(draw_cluster(cluster), cluster.description, f"Source: {cluster.source}", sep="\n")


@app.command()
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
    from meshwright.foundation.errors import InputError
    from meshwright.foundation.units import parse_bytes
    from meshwright.place.axes import parse_axes
    from meshwright.report import documents, drawing, tables, words
    from meshwright.search.rank import Reduction, rank, rank_pairs
    from meshwright.search.rank import sweep as sweep_sizes

    machine = chosen_cluster(cluster, nodes, gpus, resize)
    ranker = _ranker(machine, backend, algorithm, limit, rules, hierarchy)
    reductions = [Reduction.parse(text, parse_bytes(bytes_)) for text in reduce]
    if (sweep or all_programs) and len(reductions) > 1:
        raise InputError("--sweep and --all-programs show one reduction", "give --reduce once")
    with _progress("placements") as tick:
        ranking = rank(
            ranker, parse_axes(axes), reductions, idle=idle, unique=unique, progress=tick
        )
    found = [ranked.placement for ranked in ranking.placements]
    console = _console()
    if sweep:
        sizes = [1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30, 10 << 30]
        swept = sweep_sizes(ranker, found, reductions[0], sizes)
        if json:
            _print_json(documents.sweep_document(ranker, swept))
        else:
            console.print(tables.table_of_sweep(swept))
        return
    if all_programs:
        pairs = rank_pairs(ranker, found, reductions[0])
        if json:
            _print_json(documents.pairs_document(ranker, pairs))
        else:
            console.print(tables.table_of_pairs(pairs, top))
        return
    if json:
        _print_json(documents.ranking_document(ranker, ranking))
        return
    console.print(tables.table_of_placements(ranking.placements, top))
    if len(found) > top:
        console.print(f"... {len(found) - top} more placements (--top)")
    best, reduced = ranking.best.placement, reductions[0].axes
    console.print()
    console.print(drawing.draw_placement(best, machine.level_names, reduced, console.width))
    console.print()
    console.print(words.explain_ranking(ranking.placements, machine.level_names))
    if ranking.stopped == "interrupted":
        console.print("Interrupted: the best of the placements seen so far.")


@app.command()
def reduce(
    axes: AxesOption,
    reduce: Annotated[
        str, typer.Option(metavar="AXIS[+AXIS]", help="The axes that are summed over.")
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

    Example:  meshwright reduce --nodes 2 --gpus 4 --axes data=8 --reduce data --torch
    """
    from meshwright.foundation.units import parse_bytes
    from meshwright.place.axes import fitted, parse_axes
    from meshwright.place.placement import Placement, parse_matrix
    from meshwright.reduce.dsl import Program
    from meshwright.reduce.lower import lower, reduction_groups
    from meshwright.reduce.predict import predict
    from meshwright.reduce.verify import verified
    from meshwright.report import documents, script, tables
    from meshwright.search.rank import Reduction, rank

    machine = chosen_cluster(cluster, nodes, gpus, resize)
    ranker = _ranker(machine, backend, algorithm, limit, rules, hierarchy)
    reduction = Reduction.parse(reduce, parse_bytes(bytes_))
    if matrix is None:
        placement = rank(ranker, parse_axes(axes), [reduction], idle=idle).best.placement
    else:
        named = fitted(parse_axes(axes), machine, idle)
        placement = Placement(named, parse_matrix(matrix)).on(machine)
    levels = ranker.hierarchy(placement, reduction.axes)
    if program is not None:
        given = Program.parse(program)
        programs = [predict(levels, given, ranker.pricer, reduction.bytes)]
    elif torch:
        programs = [ranker.price(placement, reduction).best]
    else:
        programs = ranker.priced_programs(placement, reduction)
    if torch:
        best = verified(levels, programs[0].program)
        steps, groups = lower(levels, best), reduction_groups(levels)
        print(script.torch_script(best, steps, groups, placement.devices), end="")
    elif json:
        _print_json(documents.programs_document(ranker, placement, reduction, programs))
    else:
        console = _console()
        count = f"{len(programs)} programs" if program is None else "one program"
        console.print(f"{placement} on {machine.name}, {reduction}: {count}\n")
        if program is None:
            console.print(tables.table_of_programs(programs, top))
            console.print(f"\nThe first, step by step: {programs[0].program}\n")
        console.print(tables.table_of_steps(programs[0]))


@validate_app.command("p2")
def validate_p2(
    rows: Annotated[
        str | None, typer.Option(help="A table with the same columns; the embedded one by default.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predictions with the measurements of P² (MLSys 2022), Appendix A.

    Example:  meshwright validate p2
    """
    from meshwright.report import documents, tables
    from meshwright.validate.p2 import compare
    from meshwright.validate.rows import embedded_rows, load_rows
    from meshwright.validate.summary import summarize

    comparisons = compare(embedded_rows() if rows is None else load_rows(rows))
    summary = summarize(comparisons)
    if json:
        _print_json(documents.validation_document(comparisons, summary))
        return
    console = _console()
    console.print(tables.table_of_comparisons(comparisons))
    realigned = [it for it in comparisons if it.kind == "optimal" and not it.aligned]
    if realigned:
        console.print("\nLevels in axis order, as the paper ran them, and in hardware order:\n")
        console.print(tables.table_of_realigned(realigned))
    for table in (tables.table_of_errors, tables.table_of_gains, tables.table_of_fits):
        console.print()
        console.print(table(summary))


def _ranker(
    cluster: Cluster, backend: str, algorithm: str, limit: int, rules: str, hierarchy: str
) -> Ranker:
    from meshwright.price.backend import ALGORITHMS, backend_named
    from meshwright.price.step import Pricer
    from meshwright.reduce.hierarchy import HIERARCHY_KINDS
    from meshwright.reduce.synthesize import RULES
    from meshwright.search.rank import Ranker

    way = chosen(algorithm, ALGORITHMS, "--algorithm")
    return Ranker(
        Pricer(cluster, backend_named(backend), way),
        limit=limit,
        rules=chosen(rules, RULES, "--rules"),
        kind=chosen(hierarchy, HIERARCHY_KINDS, "--hierarchy"),
    )


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console.width = PIPED_WIDTH
    return console


@contextmanager
def _progress(what: str) -> Iterator[Callable[[], None]]:
    """A line on standard error that counts, on a terminal only."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(what), MofNCompleteColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task(what, total=None)
        yield lambda: progress.advance(task)


def _print_json(document: dict[str, object]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
