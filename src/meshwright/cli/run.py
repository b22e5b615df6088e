"""The verb `run`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts
from meshwright.cli.exits import Exit
from meshwright.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.plan.model import Measurement, Plan
    from meshwright.run.training import Task

MOST_RANKS = 64
"""That one machine is asked to start."""


def run(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --save' wrote.")],
    model: Annotated[
        str | None, typer.Option(help="Where the model is; by default where the plan says.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="file.py:function that yields batches; else synthetic ones.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="After one step to warm up.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the model's weights.")] = 0,
    rate: Annotated[float, typer.Option(help="The optimizer's learning rate.")] = 1e-3,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time every part, beside what was predicted.")
    ] = False,
    limit: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a rank may stand still.")
    ] = 20.0,
    backend: Annotated[
        str | None, typer.Option(help="gloo or nccl; by default nccl if there are GPUs.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train by a plan: under torchrun on its ranks, else on as many processes of this machine.

    On several machines: torchrun --nnodes N --nproc-per-node M -m meshwright run plan.json. The
    plan of the example is the one that the example of 'meshwright plan' writes.

    Example:  meshwright run plan.json --steps 3
    """
    from meshwright.foundation.errors import InputError
    from meshwright.foundation.units import Seconds
    from meshwright.plan.file import load_plan

    loaded = load_plan(plan)
    source = model or loaded.model
    if not source:
        raise InputError(
            f"plan {plan!r} does not say which model it is for", "name it with --model"
        )
    from meshwright.run.training import Task

    task = Task(
        plan=loaded,
        model=source,
        data=data,
        steps=steps,
        seed=seed,
        rate=rate,
        measure=measure or json,
        limit=Seconds(limit),
    )
    found = _under_torchrun(task, backend) if "RANK" in os.environ else _on_this_machine(task)
    if found is not None:
        _show(loaded, found, json=json, measure=measure)


def _under_torchrun(task: Task, backend: str | None) -> Measurement | None:
    """What was measured, on the first rank."""
    import torch
    import torch.distributed as dist

    from meshwright.run.training import train

    chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if chosen == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)
    dist.init_process_group(chosen)
    first = dist.get_rank() == 0
    found = train(task, _told if first else None)
    dist.destroy_process_group()
    return found if first else None


def _on_this_machine(task: Task) -> Measurement:
    from meshwright.foundation.errors import InputError
    from meshwright.foundation.units import counted
    from meshwright.run.ranks import RankError, run_ranks
    from meshwright.run.training import train

    ranks = task.plan.cluster.devices
    if ranks > MOST_RANKS:
        raise InputError(
            f"the plan is for {counted(ranks, 'device')}, too many for one machine",
            f"start it on all machines: torchrun --nnodes N --nproc-per-node {_each(task.plan)} "
            "-m meshwright run PLAN",
        )
    try:
        found = run_ranks(train, task, ranks=ranks)
    except RankError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Exit.RANK_FAILED) from None
    from meshwright.plan.model import Measurement

    own = found[0]
    assert isinstance(own, Measurement)
    return own


def _each(plan: Plan) -> int:
    return plan.cluster.hierarchy[-1]


def _told(number: int, loss: float, seconds: float) -> None:
    from meshwright.foundation.units import Seconds, format_seconds

    what = "warm-up" if number == 0 else f"step {number}"
    typer.echo(f"{what}: loss {loss:.6g}, {format_seconds(Seconds(seconds))} (measured)", err=True)


def _show(plan: Plan, found: Measurement, *, json: bool, measure: bool) -> None:
    from meshwright.report import measurements
    from meshwright.simulate.simulation import simulate

    prediction = simulate(plan).prediction
    if json:
        print_json(measurements.measurement_document(found, prediction))
        return
    parts: list[str | Table] = [
        measurements.describe_run(plan, found),
        measurements.table_of_both(prediction, found),
    ]
    if measure:
        parts.append(measurements.table_of_parts(found))
    print_parts(*parts)
