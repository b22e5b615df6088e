"""What is said of an export. Enters: `Exported`. Leaves: what the verb `export` shows; both figures
are predicted.
"""

from __future__ import annotations

import msgspec
from rich.table import Table

from meshwright.base.units import format_gibibytes
from meshwright.cluster.software import describe_software
from meshwright.export.exported import Exported
from meshwright.report.documents import Document
from meshwright.report.predictions import PredictionRow, strategies_table


def table_of_exported(found: Exported) -> Table:
    """The plan and what was written of it, both simulated."""
    rows = zip(
        ("plan", f"for {found.target}"), found.plans, (found.planned, found.written), strict=True
    )
    return strategies_table(
        PredictionRow(
            name,
            plan,
            own,
            found.planned.step / own.step,
            own.missing,
            marked=own is found.written,
        )
        for name, plan, own in rows
    )


def describe_exported(found: Exported, folder: str) -> str:
    """What was written, and what was not."""
    planned, written = (describe_software(plan.cluster) for plan in found.plans)
    lines = [
        f"for {found.target}: {found.config}.",
        f"The plan's step has {planned} and reduction programs, that of what was written {written} "
        "and single collectives.",
    ]
    if found.lost:
        lines += ["Not said there:", *(f"  {own}" for own in found.lost)]
    else:
        lines.append("Nothing is lost.")
    if found.written.missing:
        lines.append(
            f"What was written does NOT fit, by {format_gibibytes(found.written.missing)} "
            f"(predicted): 'meshwright plan ... --for {found.target}' looks for what does."
        )
    names = ", ".join(name for name, _ in found.files)
    return "\n".join([*lines, f"Written to {folder}: {names}."])


def exported_document(found: Exported) -> Document:
    """An export, for scripts; the texts are in the files."""
    return {
        "target": found.target,
        "configuration": str(found.config),
        "degrees": dict(found.config.degrees),
        "lost": list(found.lost),
        "kernels": [describe_software(plan.cluster) for plan in found.plans],
        "planned": msgspec.to_builtins(found.planned),
        "written": msgspec.to_builtins(found.written),
        "files": [name for name, _ in found.files],
    }
