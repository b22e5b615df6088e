"""The best of a grid against all of it, constraints against none, degrees that are held."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import factorizations
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.grid import ConfigChoices, ConfigOutcome, Grid, search_grid
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.degrees.refusals import refusals
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.export.uniform import uniform_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.budget import Budget
from meshwright.search.jobs import cluster_of
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import parse_constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.request.violations import violations
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


@cache
def _experts() -> PlanRequest:
    graph = load_model("zoo:mixtral-8x7b/tiny?sequence=8", 8).graph
    cluster = cluster_of("gcp-a100 node=2 gpu=4")
    return PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory)


@pytest.mark.parametrize(
    "fixes", ["tp=2 ep=2", "cp=2 dp=2", "TP=2 pp=2", "tp=1 dp=4", "ep=4 zero=1 micro-batches=2"]
)
def test_degrees_that_are_held_are_those_of_the_plan(fixes: str) -> None:
    """Read off the plan by what exports read it with, which no search knows."""
    question = replace(_experts(), constraints=parse_constraints(fixes=fixes.split()))
    planned = best_plan(question, Budget(proposals=10))
    config, options = uniform_of(planned.plan).config, planned.plan.options
    read = {
        "tp": config.tensor, "cp": config.context, "dp": config.data, "pp": config.pipeline,
        "ep": config.expert, "zero": options.zero, "micro-batches": options.micro_batches,
    }  # fmt: skip
    wanted = dict(fix.lower().split("=") for fix in fixes.split())
    assert {name: str(read[name]) for name in wanted} == wanted
    assert config.devices == question.cluster.devices


def test_a_plan_with_other_degrees_is_found_out() -> None:
    graph, cluster = _experts().graph, _experts().cluster
    config = ParallelConfig(tensor=2, data=2, context=2, expert=2, sequence=True)
    plan = configured(graph, cluster, config)
    for axis, other in product(("tp", "cp", "dp", "ep"), (1, 2, 4)):
        fixes = [f"{axis}={other}", "pp=1", *(["tp=2"] if axis == "dp" else [])]
        broken = violations(plan, parse_constraints(fixes=fixes))
        assert bool(broken) == (other != 2)
        assert all(f"'{axis}={other}'" in sentence for sentence in broken)


@pytest.mark.parametrize(
    ("model", "fixes", "sentence"),
    [
        (SMALL, "tp=3", "tensor 3 is 3, and cluster 'gcp-a100' has 4 devices; choose degrees that"),
        (SMALL, "tp=2 dp=2 pp=2", "x tensor 2 is 8, and cluster 'gcp-a100' has 4 devices"),
        (SMALL, "cp=2", "6 positions cannot be cut into 4 equal pieces"),
        (SMALL, "ep=2", "the degree of expert is 2, and the model has no experts"),
        ("zoo:lenet/tiny", "tp=2", "tp=2: .* no repeated attention layers .* --fix channel=4"),
    ],
)
def test_degrees_that_no_configuration_has_are_refused(
    model: str, fixes: str, sentence: str
) -> None:
    cluster = _asked()[1]
    constraints = parse_constraints(fixes=fixes.split())
    graph = load_model(model, 12).graph
    question = PlanRequest(
        graph=graph, cluster=cluster, memory=cluster.device.memory, constraints=constraints
    )
    with pytest.raises(InputError, match=sentence):
        best_plan(question, Budget(proposals=10))
