"""The verb `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshwright.cli import plan_options as own
from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.rule_options import OperatorsOption, defined_operators
from meshwright.cli.shared_options import (
    BackendOption,
    BatchOption,
    ClusterOption,
    DtypeOption,
    GpusOption,
    JsonOption,
    ModelArgument,
    NodesOption,
    ResizeOption,
    SequenceOption,
    SlowOption,
    SoftwareOption,
    WithoutOption,
    as_run,
    captured_graph,
    chosen,
    chosen_budget,
    chosen_machine,
    require_lines,
    require_places,
    set_aside,
)
from meshwright.cli.verbs.report import NOTHING, ReportOption, TraceOption, explained, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from meshwright.cost.backend import Backend
    from meshwright.explain.decisions import Decision
    from meshwright.plan.plan import Plan
    from meshwright.report.documents import Document
    from meshwright.search.budget import Budget
    from meshwright.search.joint.phases import SearchStatus
    from meshwright.search.joint.request.question import PlanRequest, PlanResult
    from meshwright.simulate.collective_table import CollectivePrices


def plan(
    model: ModelArgument,
    cluster: ClusterOption,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    without: WithoutOption = None,
    slow: SlowOption = None,
    batch: BatchOption = None,
    seq: SequenceOption = None,
    dtype: DtypeOption = None,
    software: SoftwareOption = None,
    budget: own.BudgetOption = "60s",
    seed: own.SeedOption = 0,
    memory: own.MemoryOption = None,
    minimize: own.MinimizeOption = "time",
    pareto: own.ParetoOption = False,
    papers: own.PapersOption = False,
    devices: own.DevicesOption = None,
    optimizer: own.OptimizerOption = "adam",
    mixed: own.MixedOption = False,
    pin: own.PinOption = None,
    forbid: own.ForbidOption = None,
    fix: own.FixOption = None,
    data: own.HeldDataOption = None,
    tensor: own.HeldTensorOption = None,
    pipeline: own.HeldPipelineOption = None,
    context: own.HeldContextOption = None,
    expert: own.HeldExpertOption = None,
    exclude_rule: own.ExcludeOption = None,
    operators: OperatorsOption = None,
    rules: own.RulesOption = None,
    certificates: own.CertificatesOption = None,
    start: own.StartOption = None,
    target: own.ForOption = None,
    out: own.OutOption = None,
    report: ReportOption = None,
    trace: TraceOption = None,
    backend: BackendOption = "nccl",
    programs: own.ProgramsOption = True,
    explain: own.ExplainOption = False,
    cores: own.CoresOption = None,
    top: own.TopOption = 40,
    json: JsonOption = False,
) -> None:
    """Find the best plan: graph, layouts, placement and reduction programs, chosen together.

    Ctrl-C ends the search with the best plan so far. It is written to plan.json. Beside it stand
    the strategies that people train with, each with as few micro-batches as fit.

    Example:  meshwright plan zoo:bert-large/tiny --cluster laptop --budget 5s
    """
    import msgspec

    from meshwright.base.processes import available_cores
    from meshwright.cli.verbs.plan_islands import (
        islands_as_run,
        plan_on_islands,
        refuse_regular_options,
    )
    from meshwright.cluster.cluster import Cluster
    from meshwright.cost.backend import backend_named
    from meshwright.explain.confirm import warm_start_under_constraints
    from meshwright.plan.file import save_plan
    from meshwright.rewrite.verify.user_rules import user_rules
    from meshwright.search.joint.request.constraints import parse_constraints, with_degrees
    from meshwright.search.joint.request.question import MINIMIZE, PlanRequest
    from meshwright.search.resolve import with_sequence
    from meshwright.simulate.simulation import prices_of

    require_lines(top)
    fixes = with_degrees(fix or (), dp=data, tp=tensor, pp=pipeline, cp=context, ep=expert)
    path, goal = own.chosen_place(out), chosen(minimize, MINIMIZE, "--minimize")
    require_places(out=path, report=report, trace=trace)
    described = chosen_machine(cluster, nodes, gpus, resize, without, slow)
    model = with_sequence(model, seq)
    if not isinstance(described, Cluster):
        refuse_regular_options(
            described,
            {
                "memory": memory,
                "exclude-rule": exclude_rule,
                "minimize": goal != "time",
                "pareto": pareto,
                "papers": papers,
            }
            | {"devices": devices, "pin": pin, "forbid": forbid, "fix": fixes, "rules": rules}
            | {"start": start, "report": report, "trace": trace, "explain": explain},
        )
        plan_on_islands(
            captured_graph(model, batch, dtype, defined_operators(operators)),
            islands_as_run(described, dtype, software),
            chosen_budget(budget),
            own.chosen_training(optimizer, mixed),
            model=model,
            backend=backend,
            seed=seed,
            cores=cores or available_cores(),
            path=path,
            json=json,
        )
        return
    machine = as_run(described, dtype, software)
    own.require_devices(devices, machine)
    if goal == "device-hours" and devices is None:
        devices = machine.devices
    workers = cores or available_cores()
    own.require_target(target, devices, start)
    programs = programs and target is None
    how = _How(
        chosen_budget(budget), backend_named(backend), programs, seed, workers, devices, papers,
        target,
    )  # fmt: skip
    first, limit = own.chosen_start(start, devices), own.chosen_memory(memory, machine)
    training = own.chosen_training(optimizer, mixed)
    constraints = parse_constraints(pin or (), forbid or (), fixes, exclude_rule or ())
    first = None if first is None else warm_start_under_constraints(first, constraints)
    graph = captured_graph(model, batch, dtype, defined_operators(operators))
    question = PlanRequest(
        graph=graph,
        cluster=machine,
        memory=limit,
        training=training,
        minimize=goal,
        constraints=constraints,
        added=user_rules(graph, operators, rules, certificates),
    )
    results = _searched(question, how, first)
    before = set_aside(path, report, trace)
    saved = msgspec.structs.replace(results[0].best.plan, model=model, batch=batch)
    results = (results[0]._replace(best=results[0].best._replace(plan=saved)), *results[1:])
    save_plan(saved, path)
    prices = prices_of(results[0].plan, programs=programs)
    wanted = explain or report is not None
    searches = own.searches(how.budget) if report is not None else None
    reasons = explained(results[0], prices, searches) if wanted else NOTHING
    decisions = reasons.decisions
    write(results[0], reasons, prices, report, trace)
    if json:
        asked = {"backend": backend, "programs": programs, "seed": seed, "budget": budget}
        document = _document(results, decisions, how, pareto)
        print_json(document | asked | {"saved": path, "report": report, "trace": trace})
        return
    parts = _parts(results, prices, how, pareto)
    if explain:
        parts += _explained(results[0], decisions, prices, top)
    print_parts(*parts, _next(path, report, trace, before, _trained(results[0], path), target))


class _How(NamedTuple):
    """How to search."""

    budget: Budget
    backend: Backend
    programs: bool
    seed: int
    cores: int
    devices: int | None
    """Smaller machines are tried too, up to so many devices."""
    papers: bool
    """Whether the strategies that papers compare with are shown too."""
    target: str | None
    """The system that must be able to say the plan."""


def _searched(question: PlanRequest, how: _How, start: Plan | None) -> tuple[PlanResult, ...]:
    """The best plan; with `--devices` that of every machine, the best use of a device first."""
    from meshwright.configs.find_plan import beside, plan_beside_recipes, recipes_for
    from meshwright.search.joint.cluster_sizes import best_of_devices

    with progress_bar("planning (the first time compiles for a minute or two)") as show:
        if how.target is not None:
            from meshwright.export.plan_for import plan_for

            return (
                plan_for(
                    question,
                    how.target,
                    how.budget,
                    backend=how.backend,
                    progress=_shown(show),
                ),
            )
        if how.devices is not None:
            first, *others = best_of_devices(
                question,
                how.devices,
                how.budget,
                backend=how.backend,
                programs=how.programs,
                seed=how.seed,
                cores=how.cores,
                progress=_shown(show),
            )
            known = recipes_for(first.question, how.budget, how.backend)
            return (beside(first, known, papers=how.papers), *others)
        best = plan_beside_recipes(
            question,
            how.budget,
            backend=how.backend,
            programs=how.programs,
            seed=how.seed,
            cores=how.cores,
            start=start,
            papers=how.papers,
            progress=_shown(show),
        )
        return (best,)


def _shown(show: Callable[[float, str], None]) -> Callable[[SearchStatus], None]:
    """Shows on a bar how a search goes on."""
    from meshwright.base.quantities import counted, format_seconds

    def told(now: SearchStatus) -> None:
        words = f"{now.doing}: {counted(now.simulated, 'plan')} simulated"
        if now.step is not None:
            words += f", {format_seconds(now.step)} predicted"
        show(now.used, words)

    return told


def _next(
    path: str,
    report: str | None,
    trace: str | None,
    before: str,
    trained: str,
    target: str | None,
) -> str:
    """Where everything is, and what to do with it."""
    places = {"plan": path, "report": report, "trace": trace}
    sentences = [
        f"The {what} is in {place}." for what, place in places.items() if place is not None
    ]
    export = [] if target is None else [f"  meshwright export {path} --to {target}   write it"]
    return "\n".join(
        (
            f"{' '.join(sentences)}{before} Next:",
            *export,
            f"  meshwright explain {path}   why, where the time goes, what would help",
            f"  meshwright report {path}    the same as an HTML page",
            trained,
        )
    )


def _trained(planned: PlanResult, path: str) -> str:
    """How to train by a plan, or why not."""
    if not planned.best.fits(planned.question.memory):
        return (
            "  it does not fit: plan anew with what helps, see above, before you run or export it"
        )
    if planned.question.graph.loss is None:
        return "  it has no loss: capture the model with one to train by a plan"
    ranks = planned.question.cluster.devices
    return f"  torchrun ... -m meshwright run {path}   train by it on {ranks} ranks"


def _parts(
    results: Sequence[PlanResult], prices: CollectivePrices, how: _How, pareto: bool
) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.explain.step_parts import step_parts
    from meshwright.report.predictions import describe_refused
    from meshwright.report.text import planned as report
    from meshwright.simulate.simulation import simulate

    best = results[0]
    parts: list[str | Table] = [report.describe_question(best), report.table_of_planned(best)]
    if best.refused:
        parts.append(describe_refused(best.refused))
    if how.devices is not None:
        parts.append(report.table_of_machines(results))
    description = report.describe_planned(best, step_parts(simulate(best.plan, prices)))
    parts.append("\n".join((description, *report.describe_hints(best))))
    return [*parts, report.table_of_front(best)] if pareto else parts


def _explained(
    planned: PlanResult, decisions: Sequence[Decision], prices: CollectivePrices, top: int
) -> list[str | Table]:
    """Every decision with its runner-up, and the plan as its graph."""
    from meshwright.report.annotated import annotated, describe_lines, table_of_lines
    from meshwright.report.text.decision_table import describe_decisions, table_of_decisions
    from meshwright.simulate.simulation import simulate

    lines = annotated(simulate(planned.plan, prices), top)
    parts: list[str | Table] = []
    if decisions:
        plan, prediction = planned.best
        parts.append(table_of_decisions(decisions, prediction.step, top, plan))
        parts.append(describe_decisions(decisions, top))
    parts.append(table_of_lines(lines, planned.question.cluster, top))
    return [*parts, describe_lines(lines, top)]


def _document(
    results: Sequence[PlanResult], decisions: Sequence[Decision], how: _How, pareto: bool
) -> Document:
    """What a script gets."""
    from meshwright.report.json import planned_documents as documents

    document = documents.planned_document(results[0], decisions)
    if pareto:
        document |= documents.front_document(results[0])
    if how.devices is not None:
        document |= documents.machines_document(results)
    return document
