"""Terminal report of `export`: what was written and what was lost. Enters: `Exported`. Leaves: what
the verb `export` shows; both figures are predicted.
"""

from __future__ import annotations

import msgspec
from rich.table import Table

from meshwright.base.quantities import format_gibibytes
from meshwright.cluster.software import describe_software
from meshwright.export.exported import Exported
from meshwright.report.documents import Document
from meshwright.report.predictions import PredictionRow, strategies_table


def table_of_exported(exported: Exported) -> Table:
    """The plan and what was written of it, both simulated."""
    rows = zip(
        ("plan", f"for {exported.target}"),
        exported.plans,
        (exported.planned, exported.written),
        strict=True,
    )
    return strategies_table(
        PredictionRow(
            name,
            plan,
            prediction,
            exported.planned.step / prediction.step,
            prediction.missing,
            marked=prediction is exported.written,
        )
        for name, plan, prediction in rows
    )


def describe_exported(exported: Exported, folder: str) -> str:
    """What was written, and what was not."""
    planned, written = (describe_software(plan.cluster) for plan in exported.plans)
    lines = [
        f"for {exported.target}: {exported.config}.",
        f"The plan's step has {planned} and reduction programs, that of what was written {written} "
        "and single collectives.",
    ]
    if exported.lost:
        lines += ["Not said there:", *(f"  {lost}" for lost in exported.lost)]
    else:
        lines.append("Nothing is lost.")
    if exported.written.missing:
        lines.append(
            f"What was written does NOT fit, by {format_gibibytes(exported.written.missing)} "
            f"(predicted): 'meshwright plan ... --for {exported.target}' looks for what does."
        )
    names = ", ".join(name for name, _ in exported.files)
    return "\n".join([*lines, f"Written to {folder}: {names}."])


def exported_document(exported: Exported) -> Document:
    """An export, for scripts; the texts are in the files."""
    return {
        "target": exported.target,
        "configuration": str(exported.config),
        "degrees": dict(exported.config.degrees),
        "lost": list(exported.lost),
        "kernels": [describe_software(plan.cluster) for plan in exported.plans],
        "planned": msgspec.to_builtins(exported.planned),
        "written": msgspec.to_builtins(exported.written),
        "files": [name for name, _ in exported.files],
    }
