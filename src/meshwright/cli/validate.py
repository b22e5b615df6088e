"""The verb `validate` and what it can validate."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.console import new_console, print_json
from meshwright.cli.options import JsonOption

validate = typer.Typer(
    help="Hold predictions against published measurements.", no_args_is_help=True
)


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
    from meshwright.report import documents, tables
    from meshwright.validate.p2 import compare
    from meshwright.validate.rows import embedded_rows, load_rows
    from meshwright.validate.summary import summarize

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
