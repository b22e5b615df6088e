"""The verbs `plan` and `explain` on a sum of islands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.shared_options import as_run, set_aside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshwright.cluster.island_cluster import IslandCluster
    from meshwright.graph.operator_graph import OperatorGraph
    from meshwright.plan.options import Options
    from meshwright.search.budget import Budget


def refuse_regular_options(machine: IslandCluster, options: Mapping[str, object]) -> None:
    """Refuse what only plans of regular clusters know."""
    from meshwright.base.errors import InputError

    for option, value in options.items():
        if value:
            raise InputError(
                f"--{option} is given, and {machine.name!r} is a sum of islands",
                f"leave it out, or plan on one island ({machine.name}#{machine.islands[0].name})",
            )


def islands_as_run(
    machine: IslandCluster, dtype: str | None, software: str | None
) -> IslandCluster:
    """The islands, whose devices run that software, and products with weights in fp8 if asked."""
    from msgspec.structs import replace

    islands = (
        replace(island, cluster=as_run(island.cluster, dtype, software))
        for island in machine.islands
    )
    return replace(machine, islands=tuple(islands))


def plan_on_islands(
    graph: OperatorGraph,
    machine: IslandCluster,
    budget: Budget,
    training: Options,
    *,
    model: str,
    backend: str,
    seed: int,
    cores: int,
    path: str,
    json: bool,
) -> None:
    """Find, save and show the best plan over islands."""
    import msgspec

    from meshwright.cost.backend import backend_named
    from meshwright.plan.island_plan import save_island_plan
    from meshwright.report.text import island_report as report
    from meshwright.search.islands.island_planner import best_island_plan
    from meshwright.search.islands.island_question import IslandQuestion

    question = IslandQuestion(graph=graph, cluster=machine, training=training)
    with progress_bar("planning (the first time compiles for a minute or two)") as show:
        planned = best_island_plan(
            question, budget, backend=backend_named(backend), seed=seed, cores=cores, progress=show
        )
    before = set_aside(path)
    save_island_plan(msgspec.structs.replace(planned.best.plan, model=model), path)
    if json:
        print_json(report.island_document(planned) | {"saved": path})
        return
    best = planned.best
    print_parts(
        report.describe_island_question(planned),
        report.table_of_alternatives(planned),
        report.table_of_island_parts(best.plan, best.prediction),
        report.describe_island_planned(planned),
        f"The plan is in {path}.{before} Next:\n"
        f"  meshwright explain {path}   who is slow, what leaving an island out gives\n"
        f"  meshwright replan {path} --without PART   the best plan for what is left",
    )


def explain_islands(path: str, *, json: bool) -> None:
    """Who does what, who is slow, and what leaving each island out would give."""
    from meshwright.explain.stragglers import left_out
    from meshwright.plan.island_plan import load_island_plan
    from meshwright.report.text import island_report as report
    from meshwright.search.islands.island_question import IslandCandidate
    from meshwright.simulate.island_step import predicted

    plan = load_island_plan(path)
    prediction = predicted(plan)
    without = left_out(plan, prediction)
    if json:
        document = report.plan_document(IslandCandidate(plan, prediction))
        print_json(document | {"without": [omission._asdict() for omission in without]})
        return
    print_parts(
        f"plan '{plan.origin}' on {plan.cluster.name}: every figure is predicted",
        report.table_of_island_parts(plan, prediction),
        report.describe_composition(plan, prediction),
        report.describe_straggler(plan, prediction),
        *([report.table_of_left_out(without)] if without else []),
    )
