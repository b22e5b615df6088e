"""The verb `replan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import plan_options as own
from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.shared_options import (
    JsonOption,
    SlowOption,
    WithoutOption,
    chosen_budget,
    graph_of_plan,
    set_aside,
    slow_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshwright.cluster.island_cluster import Machine
    from meshwright.graph.operator_graph import OperatorGraph
    from meshwright.plan.island_plan import IslandPlan
    from meshwright.plan.options import Options
    from meshwright.plan.plan import Plan
    from meshwright.search.budget import Budget


def replan(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'replan' wrote.")],
    without: WithoutOption = None,
    slow: SlowOption = None,
    budget: Annotated[str, typer.Option(help="Of the search: a time, or proposals.")] = "20s",
    seed: own.SeedOption = 0,
    cores: own.CoresOption = None,
    out: own.OutOption = None,
    json: JsonOption = False,
) -> None:
    """When a node dies or slows down: the best plan for what is left, and what it costs.

    Checkpoints of the old plan are read by the new one ('run' and 'parallelize' cut them anew).

    Example:  meshwright replan plan.json --without process3 --budget 2s --out left.json
    """
    from meshwright.base.errors import InputError
    from meshwright.base.processes import available_cores
    from meshwright.cluster.degraded import degraded
    from meshwright.plan.island_plan import IslandPlan, is_island_plan, load_island_plan

    if not without and not slow:
        raise InputError("nothing is out or slow", "name it: --without node3, or --slow node3=0.8")
    path, allowed = own.chosen_place(out), chosen_budget(budget)
    from meshwright.plan.file import load_plan

    old: Plan | IslandPlan = load_island_plan(plan) if is_island_plan(plan) else load_plan(plan)
    gone = [part for text in without or () for part in text.split(",")]
    left = degraded(old.cluster, gone, slow_parts(slow))
    graph, training, backend = _asked(old)
    with progress_bar("planning for what is left") as show:
        step, words, before = _searched(
            graph,
            left,
            training,
            path,
            how=(allowed, backend, seed, cores or available_cores()),
            names=(old.model, _batch(old)),
            known=[part.plan for part in old.parts] if isinstance(old, IslandPlan) else [],
            show=show,
        )
    full = _step(old)
    if json:
        print_json({"step_s": step, "full_step_s": full, "saved": path, "left": words})
        return
    from meshwright.base.quantities import Seconds, format_seconds

    print_parts(
        f"{graph.name} on what is left of {old.cluster.name}: {words}; every figure is predicted",
        f"step: {format_seconds(Seconds(step))}, {step / full:.3f}x as long as on the full machine "
        f"({format_seconds(Seconds(full))}).",
        f"The plan is in {path}; it goes on from any checkpoint of the old one.{before}",
    )


def _asked(old: Plan | IslandPlan) -> tuple[OperatorGraph, Options, str]:
    """The whole graph with all samples, what is said about training, the library."""
    from meshwright.base.errors import InputError
    from meshwright.graph.batch import with_samples
    from meshwright.plan.options import Options
    from meshwright.plan.plan import Plan

    first = old if isinstance(old, Plan) else max(old.parts, key=lambda part: part.share).plan
    training = Options(optimizer=first.options.optimizer, mixed=first.options.mixed)
    if isinstance(old, Plan):
        return graph_of_plan(old), training, old.backend
    if old.stages > 1:
        raise InputError(
            "the plan's islands are stages, each with its own part of the model",
            "plan anew: 'meshwright plan MODEL --cluster C --without PART'",
        )
    return with_samples(first.graph, old.batch), training, first.backend


def _batch(old: Plan | IslandPlan) -> int | None:
    """The samples that the model is asked for; a saved graph has its own."""
    from meshwright.capture.source.model_source import parse_source
    from meshwright.plan.plan import Plan

    if isinstance(old, Plan):
        return old.batch
    saved = not old.model or parse_source(old.model).form in ("graph", "program")
    return None if saved else old.batch


def _step(old: Plan | IslandPlan) -> float:
    from meshwright.plan.plan import Plan
    from meshwright.simulate.island_step import predicted
    from meshwright.simulate.simulation import simulate

    return simulate(old).prediction.step if isinstance(old, Plan) else predicted(old).step


def _searched(
    graph: OperatorGraph,
    left: Machine,
    training: Options,
    path: str,
    *,
    how: tuple[Budget, str, int, int],
    names: tuple[str, int | None],
    known: Sequence[Plan],
    show: Callable[[float, str], None],
) -> tuple[float, str, str]:
    """Search, save, and tell the step, what is left, and what was in the file before."""
    import msgspec

    from meshwright.cluster.cluster import Cluster
    from meshwright.cluster.island_cluster import levels_text
    from meshwright.cost.backend import backend_named
    from meshwright.plan.file import save_plan
    from meshwright.plan.island_plan import save_island_plan
    from meshwright.search.islands.island_planner import best_island_plan
    from meshwright.search.islands.island_question import IslandQuestion
    from meshwright.search.joint.planner import best_plan
    from meshwright.search.joint.request.question import PlanRequest

    budget, library, seed, cores = how
    backend = backend_named(library)
    if isinstance(left, Cluster):
        memory = left.device.memory
        question = PlanRequest(graph=graph, cluster=left, memory=memory, training=training)
        candidate = best_plan(question, budget, backend=backend, seed=seed, cores=cores).best
        before = set_aside(path)
        save_plan(msgspec.structs.replace(candidate.plan, model=names[0], batch=names[1]), path)
        return candidate.prediction.step, levels_text(left), before
    asked = IslandQuestion(graph=graph, cluster=left, training=training)
    best = best_island_plan(
        asked, budget, backend=backend, seed=seed, cores=cores, known=known, progress=show
    ).best
    before = set_aside(path)
    save_island_plan(msgspec.structs.replace(best.plan, model=names[0]), path)
    parts = [f"{part.name} {part.share} of {best.plan.batch}" for part in best.plan.parts]
    idle = [f"{name} idle" for name in best.plan.idle]
    return best.prediction.step, ", ".join((*parts, *idle)), before
