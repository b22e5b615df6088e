"""Exhaustive search: brute force on tiny problems, and the laws that its bounds rest on."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.exact.exhaustive import NEVER, exhaustive
from meshwright.exact.lagrangian import Relaxation
from meshwright.exact.partial_simulation import Waits, waist, waited
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.search.mcmc.parallel_chains import random_roles
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import coordinate_of, is_at
from meshwright.simulate import full
from meshwright.simulate.memory.memory_timeline import fullest, within
from meshwright.simulate.problem import StepModel
from meshwright.solvers.mini_buckets import choice, eliminate

TWO = Cluster.named("flexflow-p100", node=1, gpu=2)
PAIRS = Cluster.named("flexflow-p100", node=2, gpu=2)
THREE = Cluster.named("flexflow-p100", node=1, gpu=3)


def chain(batch: int = 4096, wide: int = 64) -> OperatorGraph:
    n = f"n={batch}"
    return parse_graph(
        f"""graph chain
        input x: float32[{n}, d=32]
        input t: int64[{n}]
        parameter a: float32[o={wide}, i=32]
        parameter b: float32[o=16, i={wide}]
        operator first: p: float32[{n}, d={wide}] = linear(x, a)
        operator relu: q: float32[{n}, d={wide}] = relu(p)
        operator second: r: float32[{n}, d=16] = linear(q, b)
        operator loss: l: float32[] = cross_entropy_loss(r, t)
        output l
        loss l"""
    )


def branches() -> OperatorGraph:
    """Two products of one input that share a parameter, and their sum."""
    return parse_graph(
        """graph branches
        input x: float32[n=512, d=64]
        input y: float32[n=512, d=64]
        parameter a: float32[o=64, i=64]
        operator left: p: float32[n=512, d=64] = linear(x, a)
        operator right: q: float32[n=512, d=64] = linear(y, a)
        operator sum: s: float32[n=512, d=64] = add(p, q)
        output s"""
    )


def makespan(problem: StepModel, roles: Codes) -> int:
    problem.lay(roles)
    return full.simulate(problem.tasks).makespan


def brute(problem: StepModel) -> int:
    """The lowest makespan of all plans, each written and simulated from scratch."""
    every = Relaxation(problem).choices
    return min(makespan(problem, np.array(combination, np.int8)) for combination in product(*every))


CASES = {
    "chain of 2": (chain(), TWO),
    "small batch": (chain(batch=8), TWO),
    "wide": (chain(batch=8, wide=65536), TWO),
    "shared parameter": (branches(), TWO),
    "three": (branches(), THREE),
}


@pytest.mark.parametrize("name", CASES)
def test_brute_force_finds_the_same(name: str) -> None:
    graph, cluster = CASES[name]
    problem = StepModel(graph, cluster)
    outcome = exhaustive(problem)
    assert outcome.proved
    assert outcome.stopped == "complete"
    assert outcome.roles is not None
    assert outcome.nanoseconds == brute(problem) == makespan(problem, outcome.roles)


@pytest.mark.parametrize("name", CASES)
def test_an_optimum_to_beat_is_proved_and_a_poor_one_beaten(name: str) -> None:
    graph, cluster = CASES[name]
    problem = StepModel(graph, cluster)
    alone = exhaustive(problem)
    for start in (alone.roles, random_roles(problem, 1)):
        again = exhaustive(problem, start)
        assert (again.proved, again.nanoseconds) == (True, alone.nanoseconds)


OPTIONS = {
    "plain": Options(),
    "zero": Options(zero=1),
    "micro-batches": Options(micro_batches=2),
    "recompute": Options(recompute=True, zero=3),
}


@cache
def measured(name: str, options: str) -> tuple[tuple[int, int], ...]:
    """Makespan and memory of all plans, each written and simulated from scratch."""
    problem = StepModel(*CASES[name], OPTIONS[options])
    figures = []
    for combination in product(*Relaxation(problem).choices):
        roles = np.array(combination, np.int8)
        problem.lay(roles)
        timeline = full.simulate(problem.tasks)
        figures.append((timeline.makespan, fullest(problem, roles, timeline).total))
    return tuple(figures)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["small batch", "shared parameter", "three"])
def test_the_fastest_plan_that_fits(name: str, options: str) -> None:
    problem, every = StepModel(*CASES[name], OPTIONS[options]), measured(name, options)
    least, most = min(memory for _, memory in every), max(memory for _, memory in every)
    random = Random(f"{name} {options}")
    for limit in (least, most, *(random.randint(least, most) for _ in range(6))):
        expected = min(makespan for makespan, memory in every if memory <= limit)
        outcome = exhaustive(problem, fits=within(problem, Bytes(limit)))
        assert (outcome.proved, outcome.nanoseconds) == (True, expected)
        assert outcome.roles is not None
        assert makespan(problem, outcome.roles) == expected
        assert within(problem, Bytes(limit))(outcome.roles)


def test_limits_bind() -> None:
    """The test above would see a search that ignores memory."""
    for name in ("small batch", "shared parameter", "three"):
        every = measured(name, "plain")
        least = min(memory for _, memory in every)
        assert min(every)[0] < min(makespan for makespan, memory in every if memory == least)


def test_nothing_fits() -> None:
    problem = StepModel(*CASES["small batch"])
    least = min(memory for _, memory in measured("small batch", "plain"))
    first = random_roles(problem, 0)
    for incumbent in (None, first):
        outcome = exhaustive(problem, incumbent, fits=within(problem, Bytes(least - 1)))
        assert (outcome.roles, outcome.nanoseconds, outcome.proved) == (None, NEVER, True)


def test_an_incumbent_that_does_not_fit_does_not_count() -> None:
    problem, every = StepModel(*CASES["small batch"]), measured("small batch", "plain")
    fastest = exhaustive(problem)
    least = min(memory for _, memory in every)
    outcome = exhaustive(problem, fastest.roles, fits=within(problem, Bytes(least)))
    assert outcome.nanoseconds == min(makespan for makespan, memory in every if memory == least)
    assert outcome.nanoseconds > fastest.nanoseconds


@pytest.mark.parametrize("name", CASES)
def test_what_is_to_be_beaten_is_beaten_or_proved(name: str) -> None:
    problem = StepModel(*CASES[name])
    least = exhaustive(problem).nanoseconds
    beaten = exhaustive(problem, best=least + 1)
    assert beaten.roles is not None
    assert (beaten.nanoseconds, beaten.proved) == (least, True)
    for best in (least, least - 1):
        outcome = exhaustive(problem, best=best)
        assert (outcome.roles, outcome.nanoseconds, outcome.proved) == (None, best, True)
    slow = random_roles(problem, 3)
    assert exhaustive(problem, slow, best=least).roles is None


def test_a_budget_leaves_a_bound_below_the_best() -> None:
    problem = StepModel(chain(), PAIRS)
    first = random_roles(problem, 0)
    outcome = exhaustive(problem, first, seconds=0.0)
    assert outcome.stopped == "budget"
    assert not outcome.proved
    assert outcome.bound <= exhaustive(problem).nanoseconds <= outcome.nanoseconds
    assert outcome.nanoseconds <= makespan(problem, first)


def test_an_interrupt_leaves_the_best_so_far() -> None:
    def interrupt(parts: int, bound: int, best: int) -> None:
        raise KeyboardInterrupt

    problem = StepModel(chain(), PAIRS)
    first = random_roles(problem, 0)
    outcome = exhaustive(problem, first, progress=interrupt)
    assert outcome.stopped in ("interrupted", "complete")
    assert outcome.nanoseconds <= makespan(problem, first)


@pytest.mark.parametrize(
    "problem",
    [
        StepModel(chain(), PAIRS),
        StepModel(branches(), PAIRS),
        StepModel(chain(), PAIRS, Options(zero=1)),
    ],
    ids=["chain", "branches", "zero"],
)
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_waiting_never_exceed_the_makespan(problem: StepModel, seed: int) -> None:
    relaxed, random = Relaxation(problem), Random(seed)
    sync_point = waist(problem, relaxed.backward)
    plans = [tuple(random.randrange(n) for n in relaxed.sizes) for _ in range(40)]
    weights = relaxed.worst(plans[0])
    added = np.zeros(1)
    for plan in plans:
        weights = weights.mixed(relaxed.worst(plan), random.random())
        waits = Waits(relaxed.waiting(weights)[None], weights.idle)
        for other in plans:
            whole = makespan(problem, relaxed.roles(other))
            bound = sum(
                float(cost[tuple(other[u] for u in scope)])
                for scope, cost in relaxed._functions(weights)
            )
            for depth in range(len(other)):
                waited(problem.tasks, sync_point, depth, waits, added)
                assert bound + added[0] <= whole + 1e-3


def test_a_chain_has_a_waist_and_sharded_parameters_have_none() -> None:
    assert Relaxation(StepModel(chain(), TWO)).backward.any()
    assert not Relaxation(StepModel(chain(), TWO, Options(zero=1))).backward.any()


@given(seed=st.integers(0, 1000), factor=st.integers(0, 1))
@settings(max_examples=20, deadline=None)
def test_coordinates_can_be_renamed(seed: int, factor: int) -> None:
    problem = StepModel(branches(), PAIRS)
    roles = random_roles(problem, seed)
    renamed = roles.copy()
    for row in renamed:
        if is_at(int(row[factor])):
            row[factor] += 2 * coordinate_of(int(row[factor])) - 1
    assert makespan(problem, roles) == makespan(problem, renamed)


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_eliminating_finds_the_least_sum(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    scopes = st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3).map(sorted)
    functions = []
    for scope in (*data.draw(st.lists(scopes, max_size=6)), *([i] for i in range(len(sizes)))):
        shape = [sizes[i] for i in scope]
        drawn = data.draw(st.lists(st.integers(0, 9), min_size=27, max_size=27))
        cost = np.array(drawn[: int(np.prod(shape))], np.float64).reshape(shape)
        functions.append((tuple(scope), cost))

    def total(choices: tuple[int, ...]) -> float:
        return sum(float(cost[tuple(choices[i] for i in scope)]) for scope, cost in functions)

    buckets = eliminate(sizes, functions)
    assert buckets.exact
    assert buckets.least == min(map(total, product(*map(range, sizes)))) == total(choice(buckets))
