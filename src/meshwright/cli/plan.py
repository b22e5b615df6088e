"""The verb `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshwright.cli import plan_options as own
from meshwright.cli.console import print_json, print_parts, share_bar
from meshwright.cli.options import (
    BackendOption,
    BatchOption,
    ClusterOption,
    DtypeOption,
    GpusOption,
    JsonOption,
    ModelArgument,
    NodesOption,
    ResizeOption,
    captured_graph,
    chosen,
    chosen_budget,
    chosen_cluster,
    require_lines,
    require_place,
)
from meshwright.cli.report import ReportOption, TraceOption, explained, write
from meshwright.cli.rule_options import OperatorsOption, defined_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from meshwright.cost.backend import Backend
    from meshwright.explain.decisions import Decision
    from meshwright.plan.model import Plan
    from meshwright.report.documents import Document
    from meshwright.search.budget import Budget
    from meshwright.search.joint.planner import Doing
    from meshwright.search.joint.question import Planned, Question


def plan(
    model: ModelArgument,
    cluster: ClusterOption,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    batch: BatchOption = None,
    dtype: DtypeOption = None,
    budget: own.BudgetOption = "60s",
    seed: own.SeedOption = 0,
    memory: own.MemoryOption = None,
    minimize: own.MinimizeOption = "time",
    pareto: own.ParetoOption = False,
    devices: own.DevicesOption = None,
    optimizer: own.OptimizerOption = "adam",
    mixed: own.MixedOption = False,
    pin: own.PinOption = None,
    forbid: own.ForbidOption = None,
    fix: own.FixOption = None,
    exclude_rule: own.ExcludeOption = None,
    operators: OperatorsOption = None,
    rules: own.RulesOption = None,
    certificates: own.CertificatesOption = None,
    start: own.StartOption = None,
    save: own.SaveOption = None,
    report: ReportOption = None,
    trace: TraceOption = None,
    backend: BackendOption = "nccl",
    programs: own.ProgramsOption = True,
    explain: own.ExplainOption = True,
    cores: own.CoresOption = None,
    top: own.TopOption = 40,
    json: JsonOption = False,
) -> None:
    """Find the best plan: graph, layouts, placement and reduction programs, chosen together.

    Ctrl-C ends the search with the best plan so far. It is written to plan.json.

    Example:  meshwright plan zoo:bert-large/tiny --cluster laptop --budget 5s
    """
    import msgspec

    from meshwright.base.processes import most_processes
    from meshwright.cost.backend import backend_named
    from meshwright.plan.file import save_plan
    from meshwright.rewrite.verify.user_rules import user_rules
    from meshwright.search.joint.constraints import parse_constraints
    from meshwright.search.joint.question import MINIMIZE, Question
    from meshwright.simulate.simulation import prices_of

    require_lines(top)
    require_place("--report", report)
    require_place("--trace", trace)
    path, goal = own.chosen_place(save), chosen(minimize, MINIMIZE, "--minimize")
    machine = chosen_cluster(cluster, nodes, gpus, resize)
    own.require_devices(devices, machine)
    if goal == "device-hours" and devices is None:
        devices = machine.devices
    workers = cores or most_processes()
    how = _How(chosen_budget(budget), backend_named(backend), programs, seed, workers, devices)
    first, limit = own.chosen_start(start, devices), own.chosen_memory(memory, machine)
    training = own.chosen_training(optimizer, mixed)
    constraints = parse_constraints(pin or (), forbid or (), fix or (), exclude_rule or ())
    graph = captured_graph(model, batch, dtype, defined_operators(operators))
    question = Question(
        graph=graph,
        cluster=machine,
        memory=limit,
        training=training,
        minimize=goal,
        constraints=constraints,
        added=user_rules(graph, operators, rules, certificates),
    )
    found = _searched(question, how, first)
    save_plan(msgspec.structs.replace(found[0].best.plan, model=model, batch=batch), path)
    prices = prices_of(found[0].plan, programs=programs)
    decisions = explained(found[0], prices) if explain else ()
    write(found[0], decisions, prices, report, trace)
    if json:
        asked = {"backend": backend, "programs": programs, "seed": seed, "budget": budget}
        document = _document(found, decisions, how, pareto)
        print_json(document | asked | {"saved": path, "report": report, "trace": trace})
    else:
        print_parts(*_parts(found, decisions, how, pareto, top), _written(path, report, trace))


class _How(NamedTuple):
    """How to search."""

    budget: Budget
    backend: Backend
    programs: bool
    seed: int
    cores: int
    devices: int | None
    """Smaller machines are tried too, up to so many devices."""


def _searched(question: Question, how: _How, start: Plan | None) -> tuple[Planned, ...]:
    """The best plan; with `--devices` that of every machine, the best use of a device first."""
    from meshwright.search.joint.machines import best_of_devices
    from meshwright.search.joint.planner import best_plan

    with share_bar("planning (the first time compiles for a minute or two)") as show:
        if how.devices is not None:
            return best_of_devices(
                question,
                how.devices,
                how.budget,
                backend=how.backend,
                programs=how.programs,
                seed=how.seed,
                cores=how.cores,
                progress=_shown(show),
            )
        best = best_plan(
            question,
            how.budget,
            backend=how.backend,
            programs=how.programs,
            seed=how.seed,
            cores=how.cores,
            start=start,
            progress=_shown(show),
        )
        return (best,)


def _shown(show: Callable[[float, str], None]) -> Callable[[Doing], None]:
    """Shows on a bar how a search goes on."""
    from meshwright.base.units import counted, format_seconds

    def told(now: Doing) -> None:
        words = f"{now.doing}: {counted(now.simulated, 'plan')} simulated"
        if now.step is not None:
            words += f", {format_seconds(now.step)} predicted"
        show(now.used, words)

    return told


def _written(path: str, report: str | None, trace: str | None) -> str:
    """Where everything is."""
    places = {"plan": path, "report": report, "trace": trace}
    told = [f"The {what} is in {place}." for what, place in places.items() if place is not None]
    return " ".join(told)


def _parts(
    found: Sequence[Planned], decisions: Sequence[Decision], how: _How, pareto: bool, top: int
) -> list[str | Table]:
    """What is printed, part by part."""
    from meshwright.report import planned as report
    from meshwright.report.predictions import describe_refused

    best = found[0]
    parts: list[str | Table] = [report.describe_question(best), report.table_of_planned(best)]
    if best.refused:
        parts.append(describe_refused(best.refused))
    if how.devices is not None:
        parts.append(report.table_of_machines(found))
    parts.append(report.describe_planned(best))
    if pareto:
        parts.append(report.table_of_front(best))
    if decisions:
        parts.append(report.table_of_decisions(decisions, best.best.prediction.step, top))
        parts.append(report.describe_decisions(decisions, top))
    return [*parts, *_graph(best, how, top)]


def _graph(planned: Planned, how: _How, top: int) -> tuple[str | Table, ...]:
    """The plan as its graph."""
    from meshwright.report.annotated import annotated, describe_lines, table_of_lines
    from meshwright.simulate.simulation import prices_of, simulate

    prices = prices_of(planned.plan, programs=how.programs)
    lines = annotated(simulate(planned.plan, prices), top)
    return table_of_lines(lines, planned.question.cluster, top), describe_lines(lines, top)


def _document(
    found: Sequence[Planned], decisions: Sequence[Decision], how: _How, pareto: bool
) -> Document:
    """What a script gets."""
    from meshwright.report import planned_documents as documents

    document = documents.planned_document(found[0], decisions)
    if pareto:
        document |= documents.front_document(found[0])
    if how.devices is not None:
        document |= documents.machines_document(found)
    return document
