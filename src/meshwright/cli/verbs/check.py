"""The verb `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import check_options as own
from meshwright.cli import plan_options
from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.exits import Exit
from meshwright.cli.shared_options import (
    BackendOption,
    BatchOption,
    ClusterOption,
    DtypeOption,
    GpusOption,
    JsonOption,
    NodesOption,
    ResizeOption,
    SequenceOption,
    SoftwareOption,
    as_run,
    captured_graph,
    chosen_budget,
    chosen_cluster,
)

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.configs.judge import Checked
    from meshwright.cost.backend import Backend
    from meshwright.graph.operator_graph import OperatorGraph
    from meshwright.search.budget import Budget


def check(
    config: Annotated[
        str | None, typer.Argument(help="A torchtitan .toml, or a file with Megatron flags.")
    ] = None,
    model: Annotated[
        str | None, typer.Argument(help="zoo:NAME, file.py:function ...; default: CONFIG's own.")
    ] = None,
    *,
    cluster: ClusterOption,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    flags: own.FlagsOption = None,
    data: own.DataOption = None,
    tensor: own.TensorOption = None,
    context: own.ContextOption = None,
    pipeline: own.PipelineOption = None,
    expert: own.ExpertOption = None,
    virtual: own.VirtualOption = None,
    micro_batches: own.MicroBatchesOption = None,
    zero: own.ZeroOption = None,
    sync_each: own.SyncEachOption = None,
    shard_within: own.ShardWithinOption = None,
    recompute: own.RecomputeOption = False,
    mixed: plan_options.MixedOption = False,
    batch: BatchOption = None,
    seq: SequenceOption = None,
    dtype: DtypeOption = None,
    software: SoftwareOption = None,
    memory: plan_options.MemoryOption = None,
    better: own.BetterOption = True,
    plan: own.PlanOption = True,
    budget: plan_options.BudgetOption = "20s",
    seed: plan_options.SeedOption = 0,
    backend: BackendOption = "nccl",
    verbose: own.VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Judge degrees of parallelism: does it run, does it fit, how fast, what is better.

    CONFIG is a torchtitan job file or a script with Megatron flags; or give --flags, or degrees.
    Exit code 0: it runs and fits; 1: it does not.

    Example:  meshwright check zoo:llama3-8b --dp 4 --tp 8 --batch 8 --cluster dgx-h100
    """
    from meshwright.configs.judge import judge
    from meshwright.cost.backend import backend_named
    from meshwright.search.resolve import with_sequence

    machine = as_run(chosen_cluster(cluster, nodes, gpus, resize), dtype, software)
    library = backend_named(backend)
    limit, allowed = plan_options.chosen_memory(memory, machine), chosen_budget(budget)
    degrees = own.given(
        data=data, tensor=tensor, context=context, pipeline=pipeline, expert=expert,
        chunks=virtual, micro_batches=micro_batches, zero=zero, sync_each=sync_each,
        shard_within=shard_within, recompute=recompute or None, mixed=mixed or None,
    )  # fmt: skip
    file, named = own.parted(config, model, flags, degrees)
    written = own.written(file, flags, degrees, machine.devices)
    own.require_own_software(software, written)
    source = with_sequence(own.chosen_model(named, written), seq)
    graph = captured_graph(source, own.chosen_batch(batch, written, source), dtype or written.dtype)
    with progress_bar("checking (the first time compiles for a minute or two)"):
        checked = judge(written, graph, machine, limit, backend=library, better=better)
    if better and plan and not checked.interrupted:
        checked = _with_plan(checked, graph, allowed, library, seed)
    if json:
        from meshwright.report.json.checked_document import checked_document

        print_json(checked_document(checked, source))
    else:
        print_parts(*_parts(checked, source, verbose))
    if not checked.good:
        raise typer.Exit(Exit.NO)


def _with_plan(
    checked: Checked, graph: OperatorGraph, budget: Budget, backend: Backend, seed: int
) -> Checked:
    """The answer with the plan of the joint search, which starts from the best configuration."""
    from meshwright.base.processes import available_cores
    from meshwright.plan.options import Options
    from meshwright.search.joint.planner import best_plan
    from meshwright.search.joint.request.question import PlanRequest

    config, start = checked.config, checked.best and checked.best.plan
    question = PlanRequest(
        graph=graph,
        cluster=checked.cluster,
        memory=checked.memory,
        training=Options(optimizer=config.optimizer, mixed=config.mixed),
    )
    with progress_bar("looking for a better plan") as show:
        planned = best_plan(
            question,
            budget,
            backend=backend,
            seed=seed,
            cores=available_cores(),
            start=start,
            progress=lambda now: show(now.used, now.doing),
        )
    return checked._replace(planned=planned)


def _parts(checked: Checked, model: str, verbose: bool) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.report.text import checked as report

    lines = [report.describe_running(checked)]
    if checked.simulation is not None:
        lines += [report.describe_fitting(checked), report.describe_step(checked)]
    parts: list[str | Table] = [report.describe_checked(checked, model), "\n".join(lines)]
    if checked.best is not None or checked.planned is not None:
        parts += [report.table_of_checked(checked), report.describe_better(checked)]
    if checked.interrupted:
        parts.append("Interrupted: no better configuration or plan was found until then.")
    if checked.written.notes:
        parts.append(report.describe_notes(checked))
    if verbose and checked.written.ignored:
        parts.append(report.describe_ignored(checked))
    return parts
