"""Bytes of units without a timeline, against those over time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.parallelize.layout import Layout
from meshwright.parallelize.units import units
from meshwright.plan.model import Options, Plan
from meshwright.price.memory import LIBRARY
from meshwright.search.baselines.megatron import megatron
from meshwright.simulate.held import curves
from meshwright.simulate.memory import held_by_roles, in_flight, unit_bytes, unit_parts
from meshwright.simulate.parts import Parts
from meshwright.simulate.problem import Problem
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, recommendation, recurrent, transformer
from support.plan_strategies import plans
from support.training_graphs import tiny

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
GRAPHS = (convolutional(), recommendation(20, 90, 40), recurrent(), transformer(3, batch=8))


def of(plan: Plan) -> Problem:
    """A plan's problem, with its roles."""
    problem = Problem(plan.graph, plan.cluster, plan.options)
    problem.roles[:] = problem.codes([plan.layout[unit.name] for unit in plan.units])
    return problem


@given(plans(repeating=True))
def test_parts_are_those_of_held(plan: Plan) -> None:
    """What lies with a unit is equal; of what is kept, what other layouts keep besides is left."""
    problem = of(plan)
    exact = Parts(problem, problem.roles)
    own = [unit_parts(problem, u, row[None]) for u, row in enumerate(problem.roles)]
    for name in ("parameters", "gradients", "optimizer", "update"):
        each = [getattr(part, name)[0] for part in own]
        assert each == getattr(exact.lying, name).tolist()
    assert all(part.kept[0] <= kept for part, kept in zip(own, exact.kept, strict=True))
    alike = len({row.tobytes() for row in problem.roles}) == 1
    if alike:
        assert [part.kept[0] for part in own] == exact.kept


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda own: own.name)
@pytest.mark.parametrize("recompute", [False, True])
def test_units_that_lie_alike_keep_what_held_says(graph: OperatorGraph, recompute: bool) -> None:
    layouts = [Layout.parse("replica replica")] * len(units(graph))
    problem = of(Plan.of("test", graph, FOUR, layouts, Options(recompute=recompute)))
    exact = Parts(problem, problem.roles)
    own = [unit_parts(problem, u, row[None]) for u, row in enumerate(problem.roles)]
    assert [part.kept[0] for part in own] == exact.kept
    assert sum(exact.rerun) > 0 or not recompute or graph.name != "transformer"
    copies = 3 if graph.name == "transformer" else 1
    if recompute and copies > 1:
        assert sum(part.rerun[0] for part in own) == pytest.approx(sum(exact.rerun) / copies)


@given(plans(repeating=True))
def test_many_layouts_are_layouts_one_by_one(plan: Plan) -> None:
    problem = of(plan)
    for unit, own in enumerate(problem.roles):
        rows = np.stack([np.full_like(own, -1), own, np.full_like(own, -3)])
        standing, kept = unit_bytes(problem, unit, rows, in_flight=2)
        alone = [unit_bytes(problem, unit, row[None], in_flight=2) for row in rows]
        assert standing.tolist() == [each[0][0] for each in alone]
        assert kept.tolist() == [each[1][0] for each in alone]


def shares(plan: Plan) -> list[float]:
    """For each device the estimate as a share of what is held at its fullest moment.

    Without libraries, buffers and inputs, which the estimate leaves out.
    """
    found = simulate(plan)
    estimate = held_by_roles(found.problem, found.problem.roles)
    exact = [
        int(own.bytes.max()) - LIBRARY - own.standing.inputs
        for own in curves(found.problem, found.problem.roles, found.timeline)
    ]
    return [float(share) for share in estimate / exact]


OPTIONS = (
    *(Options(zero=zero) for zero in range(4)),
    Options(recompute=True),
    Options(optimizer="sgd", micro_batches=4),
    Options(micro_batches=4, zero=2, recompute=True, mixed=True),
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["alexnet", "inception-v3", "bert-large", "nmt", "dlrm"])
def test_data_parallelism_comes_near(name: str, options: Options) -> None:
    graph = tiny(name, 16)
    layouts = [
        Layout.parse(
            "sample sample" if unit.extents.get("sample", (1,))[0] >= 16 else "replica replica"
        )
        for unit in units(graph)
    ]
    for share in shares(Plan.of("test", graph, FOUR, layouts, options)):
        print("SHARE", share)
        assert 0.7 < share < 1.3


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_pipelines_come_near(schedule: str) -> None:
    plan = megatron(tiny("bert-large", 16), FOUR, 2, 2, 4)
    options = Options(micro_batches=4, schedule=schedule)  # type: ignore[arg-type]
    for share in shares(Plan.of("test", plan.graph, FOUR, list(plan.layout.values()), options)):
        print("SHARE", share)
        assert 0.7 < share < 1.3


def test_micro_batches_in_flight() -> None:
    eight = Options(micro_batches=8)
    assert [in_flight(eight, 4, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(eight, 1, 0) == 1
    assert in_flight(Options(micro_batches=8, schedule="gpipe"), 4, 3) == 8
