"""The verb `run`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from meshwright.cli.console import print_json, print_parts
from meshwright.cli.exits import Exit
from meshwright.cli.shared_options import JsonOption

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from meshwright.plan.plan import Measurement, Plan, Prediction
    from meshwright.run.exec.compiled_segments import CompileReport
    from meshwright.run.training import TrainingTask

MOST_RANKS = 64
"""That one machine is asked to start."""


class _Ran(NamedTuple):
    """What there is to show of a run."""

    prediction: Prediction
    measurement: Measurement


def run(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --out' wrote.")],
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
        str | None,
        typer.Option(
            help="gloo or nccl: by default, under torchrun nccl if there are GPUs, else gloo; "
            "without torchrun gloo, and nccl has a GPU for each rank."
        ),
    ] = None,
    ranks_per_gpu: Annotated[
        int | None,
        typer.Option(
            min=1, help="Run on this machine's GPUs with NCCL, so many ranks on each of them."
        ),
    ] = None,
    against_one_device: Annotated[
        bool,
        typer.Option(
            "--against-one-device",
            help="Say whether plain PyTorch computes the same; exit code 1 if it does not.",
        ),
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--eager",
            help="Compile what ranks compute between communications, by Inductor, or run operators "
            "one by one.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train by a plan: under torchrun on its ranks, else on as many processes of this machine.

    On several machines: torchrun --nnodes N --nproc-per-node M -m meshwright run plan.json. The
    plan of the example is the one that the example of 'meshwright plan' writes.

    Example:  meshwright run plan.json --steps 3
    """
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import Seconds
    from meshwright.plan.file import load_plan
    from meshwright.plan.island_plan import is_island_plan

    if is_island_plan(plan):
        from meshwright.cli.verbs.run_islands import run_on_islands

        run_on_islands(
            plan, model=model, data=data, steps=steps, seed=seed, rate=rate, limit=limit,
            backend=backend, json=json, tell=_tell_step,
            regular={
                "measure": measure,
                "ranks-per-gpu": ranks_per_gpu is not None,
                "against-one-device": against_one_device,
                "compile": compiled,
            },
        )  # fmt: skip
        return
    loaded = load_plan(plan)
    source = model or loaded.model
    if not source:
        raise InputError(
            f"plan {plan!r} does not say which model it is for", "name it with --model"
        )
    from meshwright.run.launch.torchrun import started_by_torchrun
    from meshwright.run.training import TrainingTask, refuse_code_elsewhere, require_sources

    task = TrainingTask(
        plan=loaded,
        model=source,
        data=data,
        steps=steps,
        seed=seed,
        rate=rate,
        measure=measure or json,
        limit=Seconds(limit),
        one_device=against_one_device,
        compile=compiled,
    )
    if model is None:
        refuse_code_elsewhere(source, Path(plan))
    require_sources(task)
    if started_by_torchrun():
        if ranks_per_gpu is not None:
            raise InputError(
                f"--ranks-per-gpu is {ranks_per_gpu}, and torchrun has started the ranks already",
                "leave it out, or start 'meshwright run' without torchrun",
            )
        ran = _under_torchrun(task, backend)
    else:
        ran = _on_this_machine(task, _ranks_per_gpu(backend, ranks_per_gpu))
    if ran is not None:
        _show(loaded, ran, json=json, measure=measure)
        one = ran.measurement.one_device
        if one is not None and not one.equal:
            raise typer.Exit(Exit.NO)


def _ranks_per_gpu(backend: str | None, per_gpu: int | None) -> int | None:
    """How many ranks of this machine a GPU takes; None if they run on its CPUs."""
    from meshwright.base.errors import InputError

    if backend == "nccl":
        return per_gpu or 1
    if backend == "gloo" and per_gpu is not None:
        raise InputError(
            f"--ranks-per-gpu {per_gpu} runs on GPUs with nccl, and --backend is gloo",
            "leave one of them out",
        )
    if backend not in (None, "gloo"):
        raise InputError(f"--backend is {backend!r}", "give gloo or nccl")
    return per_gpu


def _under_torchrun(task: TrainingTask, backend: str | None) -> _Ran | None:
    """What the first rank has to show."""
    import torch
    import torch.distributed as dist

    from meshwright.run.launch.torchrun import joined, local_world_size, together
    from meshwright.run.training import RunListener, train

    with joined(backend) as device:
        if device.type == "cpu":
            torch.set_num_threads(1)
        first = dist.get_rank() == 0
        sharing = 1 if device.type == "cuda" else local_world_size()
        prediction = together(lambda: _predicted(task.plan, device, sharing) if first else None)
        measured = train(task, RunListener(_tell_step, _tell_compiled))
    return None if prediction is None else _Ran(prediction, measured)


def _on_this_machine(task: TrainingTask, ranks_per_gpu: int | None) -> _Ran:
    """Ranks as processes of this machine: on its CPUs, or several on each of its GPUs."""
    import torch

    from meshwright.base.errors import InputError
    from meshwright.base.quantities import counted
    from meshwright.calibrate.link_calibration import torchrun_command
    from meshwright.plan.plan import Measurement
    from meshwright.run.launch.gpus import gpus_for, mps_service
    from meshwright.run.launch.ranks import Home, RankError, run_ranks
    from meshwright.run.training import RunListener, train

    listener = RunListener(_tell_step, _tell_compiled)
    ranks = task.plan.cluster.devices
    if ranks > MOST_RANKS:
        raise InputError(
            f"the plan is for {counted(ranks, 'device')}, too many for one machine",
            f"on each machine give: {torchrun_command(task.plan.cluster)} meshwright run PLAN",
        )
    gpus = 0 if ranks_per_gpu is None else gpus_for(ranks, ranks_per_gpu)
    device = torch.device("cuda" if gpus else "cpu")
    prediction = _predicted(task.plan, device, ranks_per_gpu or ranks)
    try:
        # Ranks watch each other, so that none of them is waited for in vain.
        home = Home(gpus=gpus)
        with mps_service() if 0 < gpus < ranks else nullcontext():
            measurement = run_ranks(train, task, listener, ranks=ranks, home=home, timeout=None)[0]
    except RankError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Exit.RANK_FAILED) from None
    assert isinstance(measurement, Measurement)
    return _Ran(prediction, measurement)


def _predicted(plan: Plan, device: torch.device, sharing: int) -> Prediction:
    """What the plan should take by the algorithms that will run, with the bytes that its script
    says, to the byte; it must fit in memory.

    `sharing` ranks share the memory of a device.
    """
    import msgspec

    from meshwright.base.quantities import Bytes
    from meshwright.cost.backend import NCCL, RINGS
    from meshwright.lower.script import Script
    from meshwright.lower.traffic import sent_bytes_of
    from meshwright.run.memory_check import require_planned, require_real
    from meshwright.simulate.memory.memory_timeline import together
    from meshwright.simulate.simulation import simulate

    backend = NCCL if device.type == "cuda" else RINGS
    simulation = simulate(msgspec.structs.replace(plan, backend=backend.name))
    require_planned(plan, simulation.prediction)
    everywhere = together(simulation.problem, simulation.problem.roles, simulation.timeline)
    needed = Bytes(everywhere * sharing // plan.cluster.devices)
    require_real(simulation.prediction.memory.total if sharing == 1 else needed, sharing, device)
    script = Script(plan)
    moved = Bytes(sum(sent_bytes_of(script, rank) for rank in range(plan.cluster.devices)))
    return msgspec.structs.replace(simulation.prediction, moved=moved)


def _tell_compiled(report: CompileReport) -> None:
    from meshwright.base.quantities import Seconds, counted, format_seconds

    what = f"{counted(report.graphs, 'graph')} for {counted(report.uses, 'part')} of segments"
    typer.echo(f"compiled {what}, {format_seconds(Seconds(report.seconds))}", err=True)
    for reason, operators in report.eager:
        typer.echo(f"  {counted(operators, 'operator')} eager: {reason}", err=True)


def _tell_step(number: int, loss: float, seconds: float) -> None:
    from meshwright.base.quantities import Seconds, format_seconds

    what = "warm-up" if number == 0 else f"step {number}"
    typer.echo(f"{what}: loss {loss:.6g}, {format_seconds(Seconds(seconds))} (measured)", err=True)


def _show(plan: Plan, ran: _Ran, *, json: bool, measure: bool) -> None:
    from meshwright.report.text import measurements

    prediction, measured = ran
    if json:
        print_json(measurements.measurement_document(measured, prediction))
        return
    parts: list[str | Table] = [
        measurements.describe_run(plan, measured),
        measurements.table_of_both(prediction, measured),
    ]
    if measured.one_device is not None:
        parts.append(measurements.describe_one_device(measured.one_device))
    if measure:
        parts.append(measurements.table_of_parts(measured))
    print_parts(*parts)
