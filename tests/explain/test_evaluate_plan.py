"""A plan that comes from elsewhere is judged as if a search had found it."""

from __future__ import annotations

import math

import pytest

from meshwright.base.quantities import Bytes
from meshwright.baselines import BASELINES, applied
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import ALL_REDUCE
from meshwright.explain.evaluate_plan import judged, question_of
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import transformer

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = transformer()
    options = Options(optimizer="sgd", mixed=True, zero=1)
    layouts = list(data_parallel(graph, SMALL).layout.values())
    return Plan.of("by hand", graph, SMALL, layouts, options)


def test_the_question_is_what_the_plan_was_made_for(plan: Plan) -> None:
    question = question_of(plan)
    assert (question.graph, question.cluster) == (plan.graph, plan.cluster)
    assert question.memory == SMALL.device.memory
    assert question.training == Options(optimizer="sgd", mixed=True)
    assert question_of(plan, Bytes(5)).memory == 5


def test_a_plan_is_put_beside_every_baseline(plan: Plan) -> None:
    judgement = judged(plan)
    simulated = simulate(plan)
    assert judgement.best.prediction == simulated.prediction
    assert judgement.best.plan == with_programs(plan, simulated.problem)
    named, refused = dict(judgement.baselines), dict(judgement.refused)
    assert {*named, *refused} == set(BASELINES) - {"expert parallel"}  # There are no experts.
    for name, other in applied(plan.graph, SMALL, Options(optimizer="sgd", mixed=True)):
        assert str(other) == refused[name] if name in refused else other == named[name].plan
    assert judgement.simulated == 1 + len(named)
    assert (judgement.history, judgement.graphs, judgement.stopped) == ((), 1, "complete")


def test_the_bound_is_that_of_a_search_that_looks_at_one_graph(plan: Plan) -> None:
    judgement = judged(plan, baselines=False)
    again = best_plan(
        judgement.question, Budget(seconds=None, proposals=1), rewrites=False, start=plan
    )
    assert 0 < judgement.bound <= judgement.best.prediction.step
    assert again.best.prediction.step <= judgement.best.prediction.step
    assert judgement.bound <= again.best.prediction.step
    assert judgement.gap == judgement.best.prediction.step / judgement.bound - 1
    assert judged(again.plan, baselines=False).bound == again.bound


def test_what_is_not_wanted_is_left_out(plan: Plan) -> None:
    judgement = judged(plan, memory=Bytes(1), baselines=False, bound=False)
    assert (judgement.baselines, judgement.refused, judgement.front) == ((), (), (judgement.best,))
    assert (judgement.bound, judgement.gap) == (0.0, math.inf)
    assert not judgement.best.fits(judgement.question.memory)


def test_other_prices_are_taken(plan: Plan) -> None:
    plan = plan.changed(options=Options(optimizer="sgd", mixed=True))
    alone = judged(plan, baselines=False, bound=False)
    single = judged(plan, programs=False, baselines=False, bound=False)
    assert single.best.prediction.step >= alone.best.prediction.step
    assert {entry.program for entry in single.best.plan.programs} == {str(ALL_REDUCE)}
