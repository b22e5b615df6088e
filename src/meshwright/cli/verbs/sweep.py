"""The verb `sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.shared_options import JsonOption, chosen

if TYPE_CHECKING:
    from meshwright.report.text.sweeps import Outcome
    from meshwright.search.jobs import Job, JobRow
    from meshwright.search.sweep import Failed, Stopped, Where

EXAMPLE = """models = ["zoo:lenet/tiny", "zoo:mlp/tiny"]  # whatever 'meshwright capture' takes
clusters = ["laptop", "laptop process=2"]    # a name or a .toml file, and cardinalities
batches = [16]                               # without it every model's own

[plan]                                       # every line of it may be left out
budget = "200"                               # a time, as "60s", or a number of proposals
seed = 0
"""


def sweep(
    file: Annotated[
        str | None, typer.Argument(help="A TOML file with models, clusters and batches.")
    ] = None,
    where: Annotated[str, typer.Option(help="local or ray: who does the work.")] = "local",
    cores: Annotated[int | None, typer.Option(min=1, help="Jobs at once; default: all.")] = None,
    results: Annotated[
        str | None, typer.Option(help="Keep finished jobs in this file; leave out those in it.")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a file to start from, and nothing else.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    json: JsonOption = False,
) -> None:
    """Plan many models on many clusters, one job for each model, cluster and batch.

    Ctrl-C shows the jobs that are finished.

    Example:  meshwright sweep --example > sweep.toml && meshwright sweep sweep.toml
    """
    from meshwright.base.errors import InputError
    from meshwright.report.text import sweeps
    from meshwright.search.jobs import load_jobs
    from meshwright.search.sweep import WHERE

    if example:
        print(EXAMPLE, end="")
        return
    if file is None:
        raise InputError(
            "no file says what to sweep", "name one; 'meshwright sweep --example' prints one"
        )
    if csv and json:
        raise InputError("--csv and --json are both given", "give one of them")
    place, jobs = chosen(where, WHERE, "--where"), load_jobs(file)
    outcomes, stopped = _outcomes(jobs, place, cores, results)
    if json:
        print_json(sweeps.document_of_sweep(outcomes, len(jobs), stopped))
    elif csv:
        print(sweeps.csv_of_sweep(outcomes), end="")
    else:
        failures = sweeps.describe_failures(outcomes)
        print_parts(sweeps.table_of_sweep(outcomes), *([failures] if failures else []))
    if stopped != "complete":
        rest = sweeps.describe_rest(len(outcomes), len(jobs), stopped, results)
        typer.echo(f"meshwright: {rest}", err=True)


def _outcomes(
    jobs: Sequence[Job], where: Where, cores: int | None, results: str | None
) -> tuple[list[Outcome], Stopped]:
    """What became of every job that is finished, now or in an earlier sweep."""
    from meshwright.search.jobs import JobRow, planned
    from meshwright.search.results import Results
    from meshwright.search.sweep import sweep as swept

    kept = None if results is None else Results(results)
    rows: dict[Job, JobRow | Failed] = {} if kept is None else dict(kept.load())
    left = [job for job in jobs if job not in rows]
    with progress_bar(f"planning {len(left)} of {len(jobs)} jobs") as show:

        def tell(job: Job, row: JobRow | Failed) -> None:
            rows[job] = row
            if kept is not None and isinstance(row, JobRow):
                kept.add(job, row)
            show(sum(one in rows for one in jobs) / len(jobs), f"{job} is finished")

        stopped = swept(left, planned, where=where, cores=cores, progress=tell).stopped
    outcomes = [(job, rows[job]) for job in jobs if job in rows]
    if stopped == "interrupted" and not outcomes:
        raise KeyboardInterrupt
    return outcomes, stopped
