"""The verb `diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.shared_options import JsonOption, TopOption, require_lines

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.report.contrast import Contrast


def diff(
    one: Annotated[str, typer.Argument(metavar="PLAN", help="A plan that 'plan' wrote.")],
    other: Annotated[str, typer.Argument(metavar="PLAN", help="Another one.")],
    top: TopOption = 20,
    json: JsonOption = False,
) -> None:
    """Put two plans side by side: predictions, options, layouts, programs, where the time goes.

    Plans for other models or clusters can be compared too. The exit code is 0 if they differ.

    Example:  meshwright diff plan.json compared.json
    """
    from meshwright.plan.file import load_plan

    require_lines(top)
    plans = [load_plan(path) for path in (one, other)]

    from meshwright.report.contrast import contrast
    from meshwright.report.text.differences import contrast_document
    from meshwright.simulate.simulation import simulate

    with progress_bar("simulating (the first time compiles for a minute or two)"):
        contrasted = contrast(*map(simulate, plans))
    if json:
        print_json(contrast_document(contrasted, (one, other)))
    else:
        print_parts(*_parts(contrasted, (one, other), top))


def _parts(contrasted: Contrast, names: tuple[str, str], top: int) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.report.text import differences as report

    parts: list[str | Table] = [report.describe_contrast(contrasted, names)]
    if contrasted.same:
        return parts
    parts += [report.table_of_predictions(contrasted), report.table_of_waits(contrasted)]
    if contrasted.options:
        parts.append(report.table_of_options(contrasted))
    if contrasted.layouts or any(contrasted.alone):
        parts.append(report.table_of_layouts(contrasted, top))
        parts.append(report.describe_layouts(contrasted, top))
    if contrasted.collectives:
        parts.append(report.table_of_changes(contrasted, top))
        parts.append(report.describe_changes(contrasted, top))
    return parts
