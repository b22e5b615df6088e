"""The verb `run` on plans over islands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright.cli.console import print_json, print_parts
from meshwright.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshwright.base.quantities import Seconds
    from meshwright.plan.island_plan import IslandPlan
    from meshwright.run.island_training import IslandRun, IslandTask

    Told = Callable[[int, float, float], None]


def run_on_islands(
    path: str,
    *,
    model: str | None,
    data: str | None,
    steps: int,
    seed: int,
    rate: float,
    limit: float,
    backend: str | None,
    regular: Mapping[str, object],
    json: bool,
    tell: Told,
) -> None:
    """Train by a plan over islands, and show what was measured beside what was predicted."""
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import Seconds
    from meshwright.plan.island_plan import load_island_plan
    from meshwright.report.text.island_report import describe_island_run, island_run_document
    from meshwright.run.island_training import IslandTask
    from meshwright.run.launch.torchrun import joined, started_by_torchrun
    from meshwright.run.training import refuse_code_elsewhere

    for option, value in regular.items():
        if value:
            raise InputError(
                f"--{option} is given, and {path!r} is a plan over islands", "leave it out"
            )
    plan = load_island_plan(path)
    source = model or plan.model
    if not source:
        raise InputError(
            f"plan {path!r} does not say which model it is for", "name it with --model"
        )
    if model is None:
        refuse_code_elsewhere(source, Path(path))
    task = IslandTask(plan, source, data, steps, seed, rate, Seconds(limit))
    predicted = _predicted(plan)
    if started_by_torchrun():
        import torch.distributed as dist

        from meshwright.run.island_training import train_on_islands

        with joined(backend or "gloo"):
            first = dist.get_rank() == 0
            island_run = train_on_islands(task, tell)
        if not first:
            return
    else:
        island_run = _on_this_machine(task, tell)
    if json:
        print_json(island_run_document(predicted, island_run.seconds, island_run.losses))
        return
    print_parts(describe_island_run(plan, predicted, island_run.seconds, island_run.losses))


def _predicted(plan: IslandPlan) -> Seconds:
    """The step by the algorithms of gloo ranks; all parts must fit."""
    import msgspec

    from meshwright.cost.backend import RINGS
    from meshwright.run.memory_check import require_planned
    from meshwright.simulate.island_step import predicted

    replace = msgspec.structs.replace
    parts = tuple(replace(part, plan=replace(part.plan, backend=RINGS.name)) for part in plan.parts)
    prediction = predicted(replace(plan, parts=parts))
    for part, alone in zip(parts, prediction.parts, strict=True):
        require_planned(part.plan, alone)
    return prediction.step


def _on_this_machine(task: IslandTask, listener: Told) -> IslandRun:
    """Ranks as processes of this machine."""
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import counted
    from meshwright.cli.verbs.run import MOST_RANKS
    from meshwright.run.island_training import IslandRun, train_on_islands
    from meshwright.run.launch.ranks import RankError, run_ranks

    ranks = sum(part.plan.cluster.devices for part in task.plan.parts)
    if ranks > MOST_RANKS:
        raise InputError(
            f"the plan is for {counted(ranks, 'device')}, too many for one machine",
            f"start {counted(ranks, 'rank')} with torchrun, numbered part by part",
        )
    try:
        island_run = run_ranks(train_on_islands, task, listener, ranks=ranks, timeout=None)[0]
    except RankError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Exit.RANK_FAILED) from None
    assert isinstance(island_run, IslandRun)
    return island_run
