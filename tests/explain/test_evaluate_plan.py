"""A plan that comes from elsewhere is judged as if a search had found it."""

from __future__ import annotations

import math

import pytest

from meshwright.base.units import Bytes
from meshwright.baselines import BASELINES, applied
from meshwright.baselines.data import data_parallel
from meshwright.cluster.model import Cluster
from meshwright.collectives.dsl import ALL_REDUCE
from meshwright.explain.evaluate_plan import judged, question_of
from meshwright.plan.model import Plan
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.simulate.reductions import with_programs
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
    found = question_of(plan)
    assert (found.graph, found.cluster) == (plan.graph, plan.cluster)
    assert found.memory == SMALL.device.memory
    assert found.training == Options(optimizer="sgd", mixed=True)
    assert question_of(plan, Bytes(5)).memory == 5


def test_a_plan_is_put_beside_every_baseline(plan: Plan) -> None:
    found = judged(plan)
    simulated = simulate(plan)
    assert found.best.prediction == simulated.prediction
    assert found.best.plan == with_programs(plan, simulated.problem)
    named, refused = dict(found.baselines), dict(found.refused)
    assert {*named, *refused} == set(BASELINES) - {"expert parallel"}  # There are no experts.
    for name, other in applied(plan.graph, SMALL, Options(optimizer="sgd", mixed=True)):
        assert str(other) == refused[name] if name in refused else other == named[name].plan
    assert found.simulated == 1 + len(named)
    assert (found.history, found.graphs, found.stopped) == ((), 1, "complete")


def test_the_bound_is_that_of_a_search_that_looks_at_one_graph(plan: Plan) -> None:
    found = judged(plan, baselines=False)
    again = best_plan(found.question, Budget(seconds=None, proposals=1), rewrites=False, start=plan)
    assert 0 < found.bound <= found.best.prediction.step
    assert again.best.prediction.step <= found.best.prediction.step
    assert found.bound <= again.best.prediction.step
    assert found.gap == found.best.prediction.step / found.bound - 1
    assert judged(again.plan, baselines=False).bound == again.bound


def test_what_is_not_wanted_is_left_out(plan: Plan) -> None:
    found = judged(plan, memory=Bytes(1), baselines=False, bound=False)
    assert (found.baselines, found.refused, found.front) == ((), (), (found.best,))
    assert (found.bound, found.gap) == (0.0, math.inf)
    assert not found.best.fits(found.question.memory)


def test_other_prices_are_taken(plan: Plan) -> None:
    plan = plan.changed(options=Options(optimizer="sgd", mixed=True))
    alone = judged(plan, baselines=False, bound=False)
    single = judged(plan, programs=False, baselines=False, bound=False)
    assert single.best.prediction.step >= alone.best.prediction.step
    assert {own.program for own in single.best.plan.programs} == {str(ALL_REDUCE)}
