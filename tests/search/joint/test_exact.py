"""Random small questions: the joint search finds what trying everything finds.

`SMALL_QUESTIONS=200` asks all of them.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from meshwright.base.quantities import Bytes
from meshwright.exact.duration_tables import choices
from meshwright.exact.exhaustive import NEVER, exhaustive
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.memory.memory_timeline import within
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import simulate
from support.brute_force import Answer, allowed, brute_force, legal, reachable
from support.small_questions import ROOM, small_question

SEEDS = range(int(os.environ.get("SMALL_QUESTIONS", "10")))

ask = cache(small_question)


@cache
def answer(seed: int) -> Answer:
    optimum = brute_force(ask(seed))
    assert optimum is not None, "limits leave a plan that fits"
    return optimum


@pytest.mark.parametrize("seed", SEEDS)
def test_the_joint_search_finds_the_best_plan(seed: int) -> None:
    question = ask(seed)
    outcome = best_plan(question, Budget(proposals=2000), seed=seed)
    assert round(outcome.best.prediction.step * NANO) == answer(seed).nanoseconds
    assert outcome.best.prediction.memory.total <= question.memory
    assert outcome.bound <= outcome.best.prediction.step


@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_is_what_a_simulation_says(seed: int) -> None:
    optimum = answer(seed)
    prediction = simulate(optimum.plan).prediction
    assert round(prediction.step * NANO) == optimum.nanoseconds
    assert prediction.memory.total == optimum.memory <= ask(seed).memory


def plain(question: PlanRequest) -> tuple[Options, ...]:
    """The options under which layouts do not change the order in which a stage works."""
    return tuple(options for options in allowed(question) if options.micro_batches == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_branch_and_bound_finds_the_same(seed: int) -> None:
    """All graphs and options of a question with one best among them."""
    question = ask(seed)
    if len(plain(question)) < len(allowed(question)):
        pytest.skip("with several micro-batches every pipeline is a problem of its own")
    best = NEVER
    for graph in reachable(question):
        for options in plain(question):
            problem = StepModel(graph, question.cluster, options)
            fits = within(problem, Bytes(question.memory))
            optimum = exhaustive(problem, fits=fits, best=best)
            assert optimum.proved
            best = optimum.nanoseconds
    assert best == answer(seed).nanoseconds


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_legal_layouts_are_those_of_the_searches(seed: int) -> None:
    question = ask(seed)
    for options in allowed(question):
        problem = StepModel(question.graph, question.cluster, options)
        every = [legal(unit, question, options.micro_batches) for unit in problem.units]
        for number, (slow, fast) in enumerate(zip(every, choices(problem), strict=True)):
            others = [layouts[0] for layouts in every]
            codes = [problem.codes([*others[:number], one, *others[number + 1 :]]) for one in slow]
            assert {roles[number].tobytes() for roles in codes} == {row.tobytes() for row in fast}


def test_questions_are_of_every_kind() -> None:
    seeds = range(15)
    questions = [ask(seed) for seed in seeds]
    limited = sum(question.memory < ROOM for question in questions)
    assert limited == len(seeds[::3])
    assert sum(len(reachable(question)) > 1 for question in questions) >= len(seeds) * 2 // 5
    assert len({question.cluster.devices for question in questions}) >= 3
    assert any(answer(seed).plan.graph != ask(seed).graph for seed in seeds)
    assert {1, 2} <= {answer(seed).plan.options.micro_batches for seed in seeds}
    assert small_question(0) == ask(0)
