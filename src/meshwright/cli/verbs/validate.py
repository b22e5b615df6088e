"""The verb `validate` and what it can validate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, progress
from meshwright.cli.shared_options import JsonOption, require_output_path

if TYPE_CHECKING:
    from meshwright.graph.operator_graph import OperatorGraph

validate = typer.Typer(help="Hold predictions against measurements.", no_args_is_help=True)


@validate.command("p2")
def validate_p2(
    rows: Annotated[
        str | None, typer.Option(help="A table with the same columns; the embedded one by default.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predictions with the measurements of P² (MLSys 2022), Appendix A.

    Example:  meshwright validate p2
    """
    from meshwright.report.json import validation_documents as documents
    from meshwright.report.text import validations as tables
    from meshwright.validate.p2 import compare
    from meshwright.validate.p2_accuracy import summarize
    from meshwright.validate.p2_rows import embedded_rows, load_rows

    comparisons = compare(embedded_rows() if rows is None else load_rows(rows))
    summary = summarize(comparisons)
    if json:
        print_json(documents.validation_document(comparisons, summary))
        return
    console = new_console()
    console.print(tables.table_of_comparisons(comparisons))
    realigned = [it for it in comparisons if it.kind == "optimal" and not it.aligned]
    if realigned:
        console.print("\nLevels in axis order, as the paper ran them, and in hardware order:\n")
        console.print(tables.table_of_realigned(realigned))
    for table in (tables.table_of_errors, tables.table_of_gains, tables.table_of_fits):
        console.print()
        console.print(table(summary))


@validate.command("operators")
def validate_operators(
    rows: Annotated[
        str | None, typer.Option(help="A table that 'calibrate' wrote; the H200's by default.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The cluster whose device was measured.")] = "h200",
    folds: Annotated[int, typer.Option(help="Into how many parts the rows are dealt.")] = 5,
    json: JsonOption = False,
) -> None:
    """Compare predicted prices of operators with measured ones that were not used for them.

    Example:  meshwright validate operators
    """
    from meshwright.base.errors import InputError
    from meshwright.cluster.cluster import Cluster
    from meshwright.cost.profile_table import load_table
    from meshwright.cost.tables import table_of
    from meshwright.report.json.validation_documents import operators_document
    from meshwright.report.text.validations import table_of_operator_errors
    from meshwright.validate.operator_prices import compare_operators, errors_by_kind

    device = Cluster.named(cluster).device
    table = table_of(device) if rows is None else load_table(rows)
    if table is None:
        raise InputError(f"no prices of {device.name} come with Meshwright", "give --rows FILE")
    comparisons = compare_operators(table, device, folds)
    errors = errors_by_kind(comparisons)
    if json:
        print_json(operators_document(table.origin, comparisons, errors))
        return
    console = new_console()
    origin = table.origin
    console.print(f"{origin.device}, {origin.software}, {origin.date}: {len(table.rows)} calls\n")
    console.print(table_of_operator_errors(errors))


@validate.command("device")
def validate_device(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Only steps of these models; all by default, which takes a minute."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predicted training steps and memory with those measured on one H200.

    Example:  meshwright validate device bert-large
    """
    import msgspec

    from meshwright.base.errors import InputError, nearest
    from meshwright.capture.load import load_model
    from meshwright.cluster.cluster import Cluster
    from meshwright.report.json.validation_documents import device_document
    from meshwright.report.text.validations import table_of_steps_measured
    from meshwright.validate.device import compare_steps, embedded_findings

    findings = embedded_findings()
    known = {row.model for row in findings.steps}
    for name in models or ():
        if name not in known:
            raise InputError(f"no step of {name!r} was measured", nearest(name, known))
    wanted = tuple(row for row in findings.steps if not models or row.model in models)
    with progress("steps compared") as tick:
        comparisons = []
        for comparison in compare_steps(
            msgspec.structs.replace(findings, steps=wanted),
            Cluster.named("h200"),
            lambda source, batch: load_model(source, batch).graph,
        ):
            comparisons.append(comparison)
            tick()
    if json:
        print_json(device_document(comparisons))
    else:
        new_console().print(table_of_steps_measured(comparisons))


@validate.command("collectives")
def validate_collectives(
    rows: Annotated[
        str | None, typer.Option(help="A table with the same columns; the embedded one by default.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predicted AllReduces inside one machine with those that vTrain measured.

    Example:  meshwright validate collectives
    """
    from meshwright.report.json.validation_documents import collectives_document
    from meshwright.report.text.validations import table_of_collectives
    from meshwright.validate.collectives import compare, embedded_rows, load_rows, summarize

    comparisons = compare(embedded_rows() if rows is None else load_rows(rows))
    summary = summarize(comparisons)
    if json:
        print_json(collectives_document(comparisons, summary))
    else:
        new_console().print(table_of_collectives(summary))


@validate.command("published")
def validate_published(
    rows: Annotated[
        str,
        typer.Option(
            help="A table that comes along, 'published' or 'vtrain', or a file with their columns."
        ),
    ] = "published",
    source: Annotated[
        str | None, typer.Option(help="Only rows whose source contains this text.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Each row with rates that were fitted without it.")
    ] = False,
    bands: Annotated[
        str | None, typer.Option(help="Write error bands by GPU, models and kernels to this file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predicted training steps and memory with published ones, through the simulator that
    plans are decided with.

    Example:  meshwright validate published --source fms-fsdp
    """
    from meshwright.capture.load import load_model
    from meshwright.report.text.published_table import (
        describe_published,
        published_document,
        table_of_published_errors,
        table_of_skipped,
    )
    from meshwright.validate.published.accuracy import summarize_published
    from meshwright.validate.published.predicted_rows import judged
    from meshwright.validate.published.rows import load_published

    require_output_path("--bands", bands)
    wanted = [row for row in load_published(rows) if source is None or source in row.source]
    verdicts = []

    def graph_of(name: str, batch: int) -> OperatorGraph:
        return load_model(name, batch).graph

    with progress("rows judged") as tick:
        for it in judged(wanted, graph_of, without=held_out):
            verdicts.append(it)
            tick()
    summary = summarize_published(verdicts)
    if bands is not None:
        import msgspec

        from meshwright.base.files import write_atomically
        from meshwright.validate.bands import bands_of

        text = msgspec.json.format(msgspec.json.encode(bands_of(verdicts)), indent=1)
        write_atomically(bands, text + b"\n")
    if json:
        print_json(published_document(verdicts, summary))
        return
    console = new_console()
    for named, errors in (
        ("rows", {"all": summary.overall} if summary.overall else {}),
        ("source", summary.by_source),
        ("GPU", summary.by_gpu),
        ("parallelism", summary.by_kind),
    ):
        console.print(table_of_published_errors(named, errors))
        console.print()
    console.print(describe_published(summary), soft_wrap=True)
    if summary.skipped:
        console.print()
        console.print(table_of_skipped(summary))


@validate.command("heterogeneous")
def validate_heterogeneous(
    rows: Annotated[
        str | None, typer.Option(help="A table with the same columns; the embedded one by default.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predictions with AMP's measured steps on mixed and equal GPUs (NeurIPS 2022).

    Example:  meshwright validate heterogeneous
    """
    from meshwright.capture.load import load_model
    from meshwright.report.text import amp_table as report
    from meshwright.validate.heterogeneous import Judge, embedded_rows, load_rows

    loaded = embedded_rows() if rows is None else load_rows(rows)
    measured = [row for row in loaded if row.measured is not None]

    def graph_of(source: str, batch: int) -> OperatorGraph:
        return load_model(source, batch, {}).graph

    judge, trials = Judge(graph_of), []
    with progress("rows judged") as tick:
        for row in measured:
            trials.append(judge.judged(row))
            tick()
    if json:
        print_json(report.heterogeneous_document(trials))
        return
    console = new_console()
    console.print(report.table_of_trials(trials))
    console.print(report.describe_trials(trials))
