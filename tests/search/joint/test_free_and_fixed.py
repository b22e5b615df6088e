"""A constraint never finds a better plan than no constraint: a law of the joint search, on small
questions.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.memory import LIBRARY
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.moves.as_if_fixed import fixed_questions, worth_fixing
from meshwright.search.joint.moves.recompute_layers import checkpointed
from meshwright.search.joint.moves.unify_layers import UNTIDY
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import parse_constraints
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.joint.trials.evaluate import Evaluator
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, transformer

CLUSTER = Cluster.named("laptop", process=2)
FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
GRAPH = transformer(batch=16, layers=2)
BUDGET = Budget(proposals=1200)


class Job(NamedTuple):
    """What is planned, and what may be fixed of it."""

    graph: OperatorGraph
    cluster: Cluster
    share: float
    """How much of what the fastest plan of all holds may be held."""
    fixes: tuple[str, ...]


JOBS = {
    "transformer, 2 processes, tight": Job(
        GRAPH,
        CLUSTER,
        0.6,
        ("zero=3", "sync-each=yes", "recompute=yes", "stages=2", "micro-batches=4"),
    ),
    "transformer, 2 x 2": Job(GRAPH, FOUR, 9.0, ("zero=1", "stages=4", "sample=2", "channel=2")),
    "convolutions, 2 x 2, tight": Job(
        convolutional(), FOUR, 0.6, ("zero=3", "sample=2", "channel=2", "micro-batches=2")
    ),
}
PAIRS = [(name, fix) for name, job in JOBS.items() for fix in job.fixes]


@cache
def memory_of(name: str) -> Bytes:
    job = JOBS[name]
    question = PlanRequest(graph=job.graph, cluster=job.cluster, memory=Bytes(1 << 40))
    held = best_plan(question, Budget(proposals=20)).best.prediction.memory.total
    return Bytes(LIBRARY + int(job.share * (held - LIBRARY)))


@cache
def searched(name: str, fix: str = "") -> PlanResult:
    question = PlanRequest(
        graph=JOBS[name].graph,
        cluster=JOBS[name].cluster,
        memory=memory_of(name),
        constraints=parse_constraints(fixes=[fix] if fix else []),
    )
    return best_plan(question, BUDGET)


@pytest.mark.parametrize(("name", "fix"), PAIRS)
def test_a_constraint_never_finds_a_better_plan(name: str, fix: str) -> None:
    """Nor one that fits where none was found; but for what tidying may cost."""
    free, fixed = searched(name), searched(name, fix)
    assert free.bound <= free.best.prediction.step
    if fixed.best.fits(memory_of(name)):
        assert free.best.fits(memory_of(name))
        assert free.best.prediction.step <= (1 + UNTIDY) * fixed.best.prediction.step


def test_questions_with_a_fix_are_all_that_can_be_asked() -> None:
    question = PlanRequest(graph=GRAPH, cluster=FOUR, memory=Bytes(1 << 40))
    fixes = {asked.constraints.fixed[0] for asked in fixed_questions(question)}
    for name, values in (
        ("zero", "0123"), ("stages", "124"), ("sample", "124"), ("head", "124"), ("channel", "124"),
    ):  # fmt: skip
        assert {value for option, value in fixes if option == name} == set(values)
    assert {value for option, value in fixes if option == "micro-batches"} == {
        "1",
        "2",
        "4",
        "8",
        "16",
    }
    assert {value for option, value in fixes if option == "recompute"} == {"yes", "no"}
    fixed = replace(question, constraints=parse_constraints(fixes=["zero=1"]))
    assert worth_fixing(question, BUDGET)
    assert worth_fixing(question, Budget(seconds=Seconds(1)))
    assert not worth_fixing(question, Budget(proposals=500))
    assert not worth_fixing(fixed, BUDGET)


LEVEL = transformer(batch=64, layers=24, sequence=16, width=32)
"""If 17 of its layers run again the update holds most, and further layers change nothing."""


@pytest.mark.parametrize(
    ("graph", "micro", "counts"),
    [(transformer(batch=16, layers=4), 2, (1, 2, 3)), (LEVEL, 1, (3, 17))],
)
def test_layers_run_again_only_as_far_as_memory_asks(
    graph: OperatorGraph, micro: int, counts: tuple[int, ...]
) -> None:
    """The fewest layers that let a plan fit are found, from the plan without recomputation on, also
    if the one with all layers has been simulated.
    """
    layouts = [Layout(("sample",))] * len(units(graph))
    plan = Plan.of("data parallel", graph, CLUSTER, layouts, Options(micro_batches=micro))
    for count in counts:
        again = replace(plan.options, recompute=True, recompute_layers=count)
        limit = simulate(plan.changed(options=again)).prediction.memory.total
        question = PlanRequest(graph=graph, cluster=CLUSTER, memory=limit, training=Options())
        prices = CollectivePrices(Pricer(CLUSTER, algorithm="best"))
        trials = Evaluator(
            question, prices, pricer_of(CLUSTER.device), lambda: False, lambda _: None
        )
        every = replace(plan.options, recompute=True)
        for simulated in (plan, plan.changed(options=every)):
            trials.add(trials.simulated(simulated), trials.context(graph))
        checkpointed(trials, question, lambda: False)
        best = trials.kept.best
        assert best is not None
        assert best.candidate.plan.options == again
