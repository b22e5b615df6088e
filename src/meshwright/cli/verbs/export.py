"""The verb `export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts
from meshwright.cli.shared_options import JsonOption, graph_of_plan, set_aside

if TYPE_CHECKING:
    from meshwright.export.exported import Exported


def export(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --save' wrote.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="TARGET", help="pytorch, megatron, torchtitan, jax, deepspeed or accelerate."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Write the files here.")] = "export",
    json: JsonOption = False,
) -> None:
    """Write a plan for a system that you already use, and tell what it cannot say there.

    Example:  meshwright export plan.json --to pytorch --out job
    """
    from meshwright.export.exported import target_named
    from meshwright.export.write import exported
    from meshwright.plan.file import load_plan

    target_named(to)
    loaded = load_plan(plan)
    exported_plan = exported(loaded, graph_of_plan(loaded), to)
    folder, before = _written(exported_plan, out)
    if json:
        from meshwright.report.text.export_report import exported_document

        print_json(exported_document(exported_plan) | {"folder": folder})
    else:
        from meshwright.report.text.export_report import describe_exported, table_of_exported

        print_parts(
            table_of_exported(exported_plan), describe_exported(exported_plan, folder) + before
        )


def _written(exported_plan: Exported, out: str) -> tuple[str, str]:
    """The folder, and what became of files of the same names that say something else."""
    from pathlib import Path

    from meshwright.base.errors import InputError
    from meshwright.base.files import write_atomically

    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {out!r} cannot be made ({error.strerror})", "name a folder"
        ) from None
    before = ""
    for name, text in exported_plan.files:
        place = folder / name
        if not place.is_file() or place.read_bytes() != text.encode():
            before += set_aside(str(place))
            write_atomically(place, text.encode())
    return str(folder), before
