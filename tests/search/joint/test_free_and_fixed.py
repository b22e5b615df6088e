"""A constraint never finds a better plan than no constraint: a law of the joint search, on small
questions.
"""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from meshwright.base.units import Bytes
from meshwright.cluster.model import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.memory import LIBRARY
from meshwright.cost.tables import pricer_of
from meshwright.plan.model import Options, Plan
from meshwright.search.budget import Budget
from meshwright.search.joint import deepen
from meshwright.search.joint.constraints import parse_constraints
from meshwright.search.joint.evaluate import Evaluator
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.question import PlanRequest, PlanResult
from meshwright.search.joint.recompute_layers import checkpointed
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import transformer

CLUSTER = Cluster.named("laptop", process=2)
GRAPH = transformer(batch=16, layers=2)
TIGHT = 0.6
"""How much of what the fastest plan of all holds may be held."""

FIXED = ("zero=3", "micro-batches=4", "stages=2")


@pytest.fixture(autouse=True)
def _every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let budgets of few proposals go through all phases, as those of seconds do."""
    monkeypatch.setattr(deepen, "WHOLE_SIMULATION", 1)


@cache
def searched(fix: str = "", *, tight: bool = True) -> PlanResult:
    memory = Bytes(1 << 40)
    if tight:
        held = searched(tight=False).best.prediction.memory.total
        memory = Bytes(LIBRARY + int(TIGHT * (held - LIBRARY)))
    question = PlanRequest(
        graph=GRAPH,
        cluster=CLUSTER,
        memory=memory,
        training=Options(),
        constraints=parse_constraints(fixes=[fix] if fix else []),
    )
    return best_plan(question, Budget(proposals=20), rewrites=False)


def test_a_constraint_never_finds_a_better_plan() -> None:
    free = searched()
    memory = free.question.memory
    assert free.bound <= free.best.prediction.step
    assert free.best.fits(memory)
    for fix in FIXED:
        fixed = searched(fix)
        better = fixed.best.prediction.step < free.best.prediction.step
        assert not (better and fixed.best.fits(memory)), fix


def test_layers_run_again_only_as_far_as_memory_asks() -> None:
    """The fewest layers that let a plan fit are found, from the plan without recomputation on."""
    graph = transformer(batch=16, layers=4)
    layouts = [Layout(("sample",))] * len(units(graph))
    plan = Plan.of("data parallel", graph, CLUSTER, layouts, Options(micro_batches=2))
    for count in range(1, 4):
        again = replace(plan.options, recompute=True, recompute_layers=count)
        limit = simulate(plan.changed(options=again)).prediction.memory.total
        question = PlanRequest(graph=graph, cluster=CLUSTER, memory=limit, training=Options())
        prices = CollectivePrices(Pricer(CLUSTER, algorithm="best"))
        trials = Evaluator(
            question, prices, pricer_of(CLUSTER.device), lambda: False, lambda _: None
        )
        trials.add(trials.simulated(plan), trials.bench(graph))
        checkpointed(trials, question, lambda: False)
        best = trials.kept.best
        assert best is not None
        assert best.candidate.plan.options == again
