"""Comparison of baseline strategies with a searched plan, each simulated. Enters: a graph, a
cluster, a budget. Leaves: every baseline that applies and the best plan of a search that starts
from them, each simulated.

The search may use layouts in which an operator sits on part of the machine along as many of the
outermost factors as tell MOST_APART devices apart; along the others all devices take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.baselines import applied
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.tables import pricer_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.mcmc.metropolis import Engine
from meshwright.search.mcmc.parallel_chains import (
    ChainsProgress,
    ChainsResult,
    random_roles,
    search,
)
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import Codes
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.layout_space import group_outside_space, space
from meshwright.simulate.problem import StepModel
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import simulate

MOST_APART = 64


class Comparison(NamedTuple):
    """All strategies by name; the last is the one that was searched for."""

    strategies: tuple[tuple[str, Candidate], ...]
    refused: tuple[tuple[str, str], ...]
    """Baselines that do not apply, each with the reason."""
    found: ChainsResult

    @property
    def searched(self) -> Candidate:
        """What the search found."""
        return self.strategies[-1][1]

    @property
    def best(self) -> str:
        """The fastest of those that fit into memory, or of all if none does."""
        fitting = [strategy for strategy in self.strategies if not strategy[1].prediction.missing]
        return min(fitting or self.strategies, key=lambda strategy: strategy[1].prediction.step)[0]


def compare(
    graph: OperatorGraph,
    cluster: Cluster,
    budget: Budget,
    *,
    options: Options | None = None,
    backend: Backend = NCCL,
    programs: bool = True,
    seed: int = 0,
    engine: Engine = "delta",
    checkpoint: str | None = None,
    progress: Callable[[ChainsProgress], None] = lambda _: None,
) -> Comparison:
    """Every baseline that applies, and what a search from them finds.

    >>> from meshwright import Budget, Cluster, capture_model, compare
    >>> graph = capture_model("zoo:lenet/tiny", batch=8)
    >>> comparison = compare(graph, Cluster.named("laptop"), Budget.parse("10"))
    >>> comparison.strategies[0][0], comparison.searched.prediction.missing
    ('data parallel', 0)
    """
    if cluster.devices == 1:
        raise InputError(
            f"cluster {cluster.name!r} has one device, which leaves nothing to decide",
            "give it more (--nodes, --gpus or --resize)",
        )
    prices = CollectivePrices(Pricer(cluster, backend, algorithm="best"), programs=programs)
    operators = pricer_of(cluster.device)
    strategies: list[tuple[str, Candidate]] = []
    refused: list[tuple[str, str]] = []
    for name, baseline in applied(graph, cluster, options):
        if isinstance(baseline, InputError):
            refused.append((name, str(baseline)))
        else:
            prediction = simulate(baseline, prices, operators).prediction
            strategies.append((name, Candidate(baseline, prediction)))
    problem = StepModel(
        graph, cluster, options, apart=told_apart(cluster), prices=prices, operators=operators
    )
    starts = _starts(problem, strategies)
    starts["random"] = random_roles(problem, seed)
    searched = search(
        problem,
        starts,
        budget,
        seed=seed,
        engine=engine,
        checkpoint=checkpoint,
        progress=progress,
    )
    plan = problem.plan(f"search from {searched.origin}", searched.roles)
    simulation = simulate(plan, prices, operators)
    plan = with_programs(plan, simulation.problem)
    strategies.append(("search", Candidate(plan, simulation.prediction)))
    return Comparison(tuple(strategies), tuple(refused), searched)


def told_apart(cluster: Cluster) -> tuple[bool, ...]:
    """The outermost factors, as many as tell at most MOST_APART devices apart."""
    apart, devices = [], 1
    for factor in factors(cluster):
        devices *= factor.size
        apart.append(devices <= MOST_APART)
    return tuple(apart)


def _starts(problem: StepModel, strategies: list[tuple[str, Candidate]]) -> dict[str, Codes]:
    """The layouts of the baselines with the problem's options that its space has."""
    room = space(problem)
    starts = {
        name: problem.codes([candidate.plan.layout[unit.name] for unit in problem.units])
        for name, candidate in strategies
        if candidate.plan.options == problem.options
    }
    return {
        name: codes
        for name, codes in starts.items()
        if group_outside_space(problem, room, codes) is None
    }
