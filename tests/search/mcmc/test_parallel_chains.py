"""Searches: never worse than where they start, reproducible, interruptible, truly Metropolis."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.exact.exhaustive import exhaustive
from meshwright.exact.lagrangian import Relaxation
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.search.budget import Budget
from meshwright.search.mcmc.metropolis import (
    COST,
    LONGEST,
    MetropolisChain,
    chain_buffers,
    run_metropolis,
)
from meshwright.search.mcmc.parallel_chains import (
    TURN,
    ChainsProgress,
    ChainsResult,
    random_roles,
    search,
)
from meshwright.sharding.reshard import Codes
from meshwright.simulate import full
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import space
from meshwright.simulate.move import move_buffers, undo
from meshwright.simulate.problem import StepModel

TWO = Cluster.named("flexflow-p100", node=1, gpu=2)
FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)


def pair(batch: int = 8192) -> OperatorGraph:
    """Two units that share a parameter, and nothing else."""
    return parse_graph(
        f"""graph pair
        input x: float32[n={batch}, d=64]
        parameter a: float32[o=64, i=64]
        operator first: p: float32[n={batch}, d=64] = linear(x, a)
        operator second: q: float32[n={batch}, d=64] = linear(p, a)
        output q"""
    )


def convolutions(channels: int, last: int) -> OperatorGraph:
    """Two in a row, whose plans have valleys that a cold walk does not leave."""
    return parse_graph(
        f"""graph convolutions
        input x: float32[n=4, c={channels}, h=8, w=8]
        parameter a: float32[o={channels}, i={channels}, kh=3, kw=3]
        parameter b: float32[o={last}, i={channels}, kh=3, kw=3]
        operator first: p: float32[n=4, c={channels}, h=8, w=8] = conv2d(x, a) {{padding=[1, 1]}}
        operator second: q: float32[n=4, c={last}, h=8, w=8] = conv2d(p, b) {{padding=[1, 1]}}
        output q"""
    )


def makespan(problem: StepModel, roles: Codes) -> int:
    problem.lay(roles)
    return full.simulate(problem.tasks).makespan


def starts(problem: StepModel) -> dict[str, Codes]:
    return {f"random {seed}": random_roles(problem, seed) for seed in range(2)}


def same(one: ChainsResult, other: ChainsResult) -> bool:
    steps = [(proposals, cost) for proposals, _, cost in one.history]
    return (
        bool((one.roles == other.roles).all())
        and one.nanoseconds == other.nanoseconds
        and one.proposals == other.proposals
        and steps == [(proposals, cost) for proposals, _, cost in other.history]
    )


def test_never_worse_than_the_best_start_and_the_cost_is_true() -> None:
    problem = StepModel(pair(), FOUR)
    start_roles = starts(problem)
    best = search(problem, start_roles, Budget(proposals=4000))
    assert best.nanoseconds <= min(makespan(problem, roles) for roles in start_roles.values())
    assert best.nanoseconds == makespan(problem, best.roles)


@pytest.mark.parametrize(("channels", "last"), [(192, 192), (256, 64)])
def test_leaves_valleys_for_the_optimum(channels: int, last: int) -> None:
    """A walk at the temperature WARMTH ended above it with half of the seeds."""
    problem = StepModel(convolutions(channels, last), FOUR)
    least = exhaustive(problem).nanoseconds
    for seed in (1, 2, 4):
        start_roles = {"random": random_roles(problem, seed)}
        assert (
            search(problem, start_roles, Budget(proposals=20 * TURN), seed=seed).nanoseconds
            == least
        )


def test_the_same_seed_gives_the_same_whatever_the_engine() -> None:
    problem = StepModel(pair(), FOUR)
    start_roles, budget = starts(problem), Budget(proposals=6000)
    first = search(problem, start_roles, budget, seed=3)
    assert same(first, search(problem, start_roles, budget, seed=3))
    assert same(first, search(problem, start_roles, budget, seed=3, engine="full"))


def test_visits_follow_the_metropolis_distribution() -> None:
    """Frequencies against exp(-cost / temperature) over all legal layouts of two units.

    Visits are counted every 40 proposals, when little of the last state is left. The sum of
    (seen - expected)² / expected then has about as many degrees of freedom as there are states;
    the bound is twice that, many times its standard deviation sqrt(2 x states) away.
    """
    problem = StepModel(pair(), TWO)
    every = [np.array(rows, np.int8) for rows in product(*Relaxation(problem).choices)]
    cost = {roles.tobytes(): makespan(problem, roles) for roles in every}
    least = min(cost.values())
    temperature = (max(cost.values()) - least) / 2
    weight = {key: math.exp((least - price) / temperature) for key, price in cost.items()}
    roles = every[0]
    problem.lay(roles)
    number = np.zeros(6, np.int64)
    number[COST] = cost[roles.tobytes()]
    walk = MetropolisChain(np.array([7], np.uint64), number, np.array([temperature]), roles.copy())
    table, log, room = chain_buffers(problem), undo(problem, LONGEST), space(problem)
    seen = dict.fromkeys(cost, 0)
    samples = 60 * len(cost)
    for _ in range(samples):
        assert run_metropolis(move_buffers(problem), log, room, walk, table, 40) == FOUND
        seen[problem.roles.tobytes()] += 1
        assert number[COST] == cost[problem.roles.tobytes()]
    expected = {key: samples * share / sum(weight.values()) for key, share in weight.items()}
    assert min(expected.values()) > 5
    deviation = sum((seen[key] - count) ** 2 / count for key, count in expected.items())
    assert deviation < 2 * len(cost)


def test_an_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: ChainsProgress) -> None:
        raise KeyboardInterrupt

    problem = StepModel(pair(), FOUR)
    start_roles = starts(problem)
    best = search(problem, start_roles, Budget(proposals=10**9), progress=interrupt)
    assert (best.stopped, best.proposals) == ("interrupted", TURN)
    assert best.nanoseconds == makespan(problem, best.roles)
    assert best.nanoseconds <= min(makespan(problem, roles) for roles in start_roles.values())


@pytest.mark.parametrize("turns", [1, 3])
def test_interrupted_and_resumed_is_uninterrupted(tmp_path: Path, turns: int) -> None:
    left = [turns]

    def interrupt(progress: ChainsProgress) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    problem = StepModel(pair(), FOUR)
    start_roles, budget, path = (
        starts(problem),
        Budget(proposals=12 * TURN),
        str(tmp_path / "state"),
    )
    whole = search(problem, start_roles, budget)
    broken = search(problem, start_roles, budget, checkpoint=path, progress=interrupt)
    assert broken.stopped == "interrupted"
    assert same(whole, search(problem, start_roles, budget, checkpoint=path))


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    problem = StepModel(pair(), FOUR)
    start_roles, budget, path = starts(problem), Budget(proposals=1000), tmp_path / "state"
    search(problem, start_roles, budget, checkpoint=str(path))
    written = path.read_bytes()
    with pytest.raises(InputError, match="belongs to a search with another"):
        search(problem, start_roles, budget, seed=1, checkpoint=str(path))
    for text, message in (
        (b"nonsense", "cannot be read"),
        (written[: len(written) // 2], "cannot be read"),
        (written.replace(b'checkpoint":1', b'checkpoint":99'), "version 99"),
    ):
        path.write_bytes(text)
        with pytest.raises(InputError, match=message):
            search(problem, start_roles, budget, checkpoint=str(path))
    with pytest.raises(InputError, match="cannot write"):
        search(problem, start_roles, budget, checkpoint=str(tmp_path / "nowhere" / "state"))


@pytest.mark.parametrize("budget", [{"proposals": 0}, {"seconds": 0.0}, {"seconds": -1.0}, {}])
def test_a_budget_of_nothing_is_refused(budget: dict[str, float]) -> None:
    with pytest.raises(InputError, match="budget"):
        Budget(**budget)  # type: ignore[arg-type]
