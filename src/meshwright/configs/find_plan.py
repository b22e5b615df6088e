"""`find_plan`: the joint planner from Python, warm-started from recipes (DDP, FSDP, ...). Enters: a
model, a cluster, what counts. Leaves: a `PlanResult` whose baselines are the strategies of today
(`recipes`).

The joint search starts from the fastest of them that fits, so that its answer is no slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import cluster_with_software
from meshwright.configs.recipes import Recipes, recipes
from meshwright.cost.backend import NCCL, Backend, backend_named
from meshwright.cost.memory import Optimizer
from meshwright.explain.confirm import warm_start_under_constraints
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.rewrite.verify.user_rules import user_rules
from meshwright.search.budget import Budget
from meshwright.search.joint.jit_warm_up import warm_up
from meshwright.search.joint.phases import Progress
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import parse_constraints, with_degrees
from meshwright.search.joint.request.question import Minimize, PlanRequest, PlanResult
from meshwright.search.resolve import cluster_of, graph_of, memory_limit, with_sequence

SHARE = 0.25
"""Of a budget in seconds, what the strategies of today may take of it."""


def find_plan(
    model: str | OperatorGraph,
    cluster: str | Cluster,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    software: str | None = None,
    memory: str | Bytes | None = None,
    budget: str | float | Budget = "60s",
    seed: int = 0,
    minimize: Minimize = "time",
    optimizer: Optimizer = "adam",
    mixed: bool = False,
    dp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
    pin: Iterable[str] = (),
    forbid: Iterable[str] = (),
    fix: Iterable[str] = (),
    exclude_rules: Iterable[str] = (),
    operators: str | Path | None = None,
    rules: str | Path | None = None,
    certificates: str | Path | None = None,
    start: Plan | None = None,
    backend: str = "nccl",
    programs: bool = True,
    cores: int = 1,
    progress: Progress = lambda _: None,
) -> PlanResult:
    """The best plan that a budget buys: graph, layouts, placement and reduction programs together.

    A budget is seconds (20, "20s") or a number of proposals ("5000"). A model is a text that
    `meshwright capture` takes, with its batch and dtype, or a graph from `capture_model`; a cluster
    a name of the catalogue, a .toml file, or a `Cluster`, with as many nodes, and GPUs in each, as
    are given. What is priced is eager PyTorch, or the software that is named: "compiled" or
    "megatron". Degrees that are given (tp=8, pp=4) are held; with those of tp, cp or ep only
    configurations by degrees are searched. Operators and rules of your own are files
    (docs/rules.md). The rest is as in `meshwright plan --help`. With more than one core, processes
    are started: guard the script with `if __name__ == "__main__"`.

    >>> from meshwright import find_plan
    >>> planned = find_plan("zoo:lenet/tiny", "laptop", batch=8, budget="10")
    >>> planned.plan.cluster.devices, [name for name, _ in planned.baselines]
    (4, ['DDP', 'ZeRO 1', 'FSDP (ZeRO 3)'])
    """
    sizes = {level: n for level, n in (("node", nodes), ("gpu", gpus)) if n is not None}
    machine = cluster_with_software(cluster_of(cluster).resized(sizes), software)
    graph = graph_of(with_sequence(model, seq), batch, dtype, operators)
    fixes = with_degrees(fix, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    constraints = parse_constraints(pin, forbid, fixes, exclude_rules)
    question = PlanRequest(
        graph=graph,
        cluster=machine,
        memory=memory_limit(memory, machine),
        training=Options(optimizer=optimizer, mixed=mixed),
        minimize=minimize,
        constraints=constraints,
        added=user_rules(graph, operators, rules, certificates),
    )
    planned = plan_beside_recipes(
        question,
        Budget.of(budget),
        backend=backend_named(backend),
        programs=programs,
        seed=seed,
        cores=cores,
        start=None if start is None else warm_start_under_constraints(start, constraints),
        progress=progress,
    )
    named = with_sequence(model, seq) if isinstance(model, str) else ""
    plan = msgspec.structs.replace(planned.best.plan, model=named, batch=batch)
    return planned._replace(best=planned.best._replace(plan=plan))


def plan_beside_recipes(
    question: PlanRequest,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    programs: bool = True,
    seed: int = 0,
    cores: int = 1,
    start: Plan | None = None,
    papers: bool = False,
    progress: Progress = lambda _: None,
) -> PlanResult:
    """The best plan, beside what people train with; with `papers` also beside what papers compare
    with. A search that is told no plan to start from starts from the best of today.
    """
    known = recipes_for(question, budget, backend)
    if start is None:
        best = known.best(question.memory)
        start = None if best is None else best.plan
    planned = best_plan(
        question,
        budget,
        backend=backend,
        programs=programs,
        seed=seed,
        cores=cores,
        start=start,
        progress=progress,
    )
    return beside(planned, known, papers=papers)


def recipes_for(question: PlanRequest, budget: Budget, backend: Backend) -> Recipes:
    """The strategies of today for a question, as far as a budget allows."""
    allowed = None if budget.seconds is None else SHARE * budget.seconds
    warm_up()
    began = time.monotonic()
    return recipes(
        question.graph,
        question.cluster,
        question.memory,
        training=question.training,
        backend=backend,
        late=lambda: allowed is not None and time.monotonic() - began > allowed,
    )


def fastest_recipe(budget: Budget, backend: Backend, question: PlanRequest) -> Plan | None:
    """The fastest of the strategies of today that fits."""
    best = recipes_for(question, budget, backend).best(question.memory)
    return None if best is None else best.plan


def beside(planned: PlanResult, known: Recipes, *, papers: bool) -> PlanResult:
    """A search's answer beside the strategies of today; its own baselines are the papers'."""
    old = ((), ()) if not papers else (planned.baselines, planned.refused)
    return planned._replace(baselines=(*known.fitted, *old[0]), refused=(*known.refused, *old[1]))
