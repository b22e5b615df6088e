"""The page of file formats. Enters: the records that are read and written. Leaves: Markdown."""

from __future__ import annotations

import inspect

from docs.reference.markdown import cell, code, docstring, table
from docs.reference.source import fields
from meshwright.cluster.cluster import Cluster, Device, Level, Link
from meshwright.cluster.toml import dump_cluster
from meshwright.cost import profile_table as price_table
from meshwright.cost.profile_table import MeasuredCall, Origin
from meshwright.graph import notation
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Parameter, Spec, Tensor
from meshwright.plan import file as plan_file
from meshwright.plan.options import Options
from meshwright.plan.plan import VERSION, Plan, PlannedReduction
from meshwright.rewrite.language import syntax as text
from meshwright.rewrite.library import Certificate
from meshwright.search import results
from meshwright.search.jobs import Job, JobRow, SweepOptions

INTRODUCTION = """Every file that Meshwright reads and writes. Files are written whole or not at
all; a mistake in one is told in a sentence with its path. All numbers in JSON are in base units:
bytes, bytes a second, seconds, operations a second."""


def files_page() -> str:
    """All file formats."""
    return "\n\n".join(
        [
            "# File formats",
            INTRODUCTION,
            *_plans(),
            *_clusters(),
            *_prices(),
            *_rules(),
            *_sweeps(),
            "## Options: meshwright.toml",
            "Told with the [command line](cli.md#configuration-file).",
            "## Reports in JSON",
            "What `--json` prints is told verb by verb in [json.md](../json.md); a trace "
            "(`simulate --trace`) is in the Trace Event Format of Perfetto and chrome://tracing.",
        ]
    )


def _plans() -> list[str]:
    return [
        "## Plans: plan.json",
        docstring(plan_file.__doc__),
        f"The key `{plan_file.KEY}` holds the version of the format, {VERSION} today; the others "
        "are the fields of a plan. What layouts mean is told in [plans.md](../plans.md).",
        *map(_record, (Plan, Options, PlannedReduction)),
        "A graph is as `capture --save` writes it too:",
        *map(_record, (OperatorGraph, Parameter, Tensor, Spec, Operator)),
    ]


def _clusters() -> list[str]:
    example = dump_cluster(Cluster.named("laptop"))
    return [
        "## Clusters: .toml",
        "A cluster file has the fields below, sizes and rates as text with their units; "
        "[clusters.md](../clusters.md) tells how to describe one's own. In a plan and in "
        "`clusters --json` the same fields are numbers. `meshwright clusters NAME --toml` prints "
        "any of the catalogue to start from, as",
        f"```toml\n{example}```",
        *map(_record, (Cluster, Level, Link, Device)),
    ]


def _prices() -> list[str]:
    return [
        "## Measured prices: .jsonl",
        docstring(price_table.__doc__),
        "The header line:",
        _record(Origin),
        "Every further line:",
        *map(_record, (MeasuredCall, Call)),
    ]


def _rules() -> list[str]:
    return [
        "## Rules: .rules",
        docstring(text.__doc__),
        "### Operators: .txt",
        docstring(notation.__doc__),
        "### Certificates: .json",
        "A list of what `rules verify --certify` has proved:",
        _record(Certificate),
    ]


def _sweeps() -> list[str]:
    return [
        "## Sweeps: .toml",
        "`models`, `clusters` and `batches` are lists; `[plan]` has the fields below. "
        "`meshwright sweep --example` prints one to start from.",
        _record(SweepOptions),
        "### Results of a sweep: .jsonl",
        docstring(results.__doc__),
        "Each line has a `job` and its `row`:",
        *map(_record, (Job, JobRow)),
    ]


def _record(record: type) -> str:
    rows = (
        (
            code(it.name),
            code(it.kind),
            "required" if it.default is None else code(it.default),
            cell(it.text),
        )
        for it in fields(record)
    )
    heading = f"**{record.__name__}**: {docstring(inspect.getdoc(record))}"
    return f"{heading}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"
