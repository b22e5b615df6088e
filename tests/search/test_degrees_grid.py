"""The best of a grid against all of it, and constraints against none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from msgspec.structs import replace

from meshwright.base.integers import factorizations
from meshwright.baselines.degrees.config import ParallelConfig
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.grid import ConfigChoices, ConfigOutcome, Grid, search_grid
from meshwright.baselines.degrees.refusals import refusals
from meshwright.capture.load import load_model
from meshwright.cluster.model import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.graph.model import OperatorGraph
from meshwright.search.budget import Budget
from meshwright.search.jobs import cluster_of
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import parse_constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

SMALL = "zoo:llama3-8b/tiny"


@cache
def _asked() -> tuple[OperatorGraph, Cluster, CollectivePrices]:
    graph, cluster = load_model(SMALL, 12).graph, cluster_of("gcp-a100 node=2 gpu=2")
    return graph, cluster, CollectivePrices(Pricer(cluster, algorithm="best"))


@cache
def _predicted(config: ParallelConfig) -> tuple[float, int]:
    graph, cluster, prices = _asked()
    prediction = simulate(configured(graph, cluster, config), prices).prediction
    return prediction.step, prediction.memory.total


def _all(layers: int) -> Iterator[ParallelConfig]:
    """The whole grid on four devices, with twelve samples."""
    for tensor, context, pipeline, data in factorizations(4, (4,) * 4):
        for micro, zero, recompute, chunks in product(
            (1, 2, 3, 4, 6, 12), range(4), (False, True), (1, 2)
        ):
            yield ParallelConfig(
                data=data, tensor=tensor, context=context, pipeline=pipeline, zero=zero,
                micro_batches=micro, recompute=recompute, chunks=chunks, sequence=tensor > 1,
                uneven=bool(layers % pipeline),
            )  # fmt: skip


@pytest.mark.parametrize("share", [1.0, 0.6, 0.35])
def test_the_best_of_a_grid_is_that_of_all_of_it_but_for_half_a_percent(share: float) -> None:
    """With so much memory as a share of what plain data parallelism holds."""
    graph, cluster, _ = _asked()
    grid = Grid(graph, cluster, ConfigChoices(ParallelConfig()))
    limit = share * _predicted(ParallelConfig(data=4))[1]
    judged: dict[ParallelConfig, ConfigOutcome] = {}

    def judge(config: ParallelConfig) -> ConfigOutcome | None:
        if refusals(graph, cluster, config):
            return None
        step, held = _predicted(config)
        judged[config] = ConfigOutcome(held > limit, held if held > limit else step, step)
        return judged[config]

    search_grid(grid, judge, lambda: False, lambda: False)
    outcome, tried = min(judged.values()), len(judged)
    every = [config for config in _all(grid.facts.layers) if judge(config) is not None]
    best = min(judge(config) or outcome for config in every)
    assert outcome.over == best.over
    assert outcome.value <= best.value * 1.005
    assert tried < len(every)


def test_no_constraint_finds_a_better_plan_than_none() -> None:
    graph, cluster, _ = _asked()
    question = PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory)
    steps = {
        fixed: best_plan(
            replace(question, constraints=parse_constraints(fixes=fixed.split())),
            Budget(proposals=2_400),
        ).best.prediction.step
        for fixed in ("", "zero=0")
    }
    assert steps[""] == min(steps.values())
