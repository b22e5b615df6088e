"""What a step waits for: the path of tasks, and what it is made of."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.baselines.data import data_parallel
from meshwright.baselines.expert import expert
from meshwright.cluster.cluster import Cluster
from meshwright.explain.critical_path import PathPiece, critical_path
from meshwright.explain.exposed import collective_costs, kind_costs, link_costs
from meshwright.explain.path_breakdown import by_category, stretches
from meshwright.explain.utilisation import is_op_group_pass
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.simulate import reference
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.listed_collectives import moves
from meshwright.simulate.simulation import Simulation, simulate
from meshwright.simulate.tasks import NOWHERE, TaskGraph, Timeline
from support.baseline_graphs import transformer
from support.plan_strategies import plans
from support.task_strategies import random_graph
from task_graphs import task_graph

PLANS = plans(repeating=True)


def two_devices_and_a_link() -> TaskGraph:
    """Task 0 for 5, then 2 on its device and an all-reduce that waits for the link that 1 holds."""
    return task_graph(
        edges=[(0, 2), (0, 3), (2, 4), (3, 4)],
        duration=[5, 9, 2, 6, 1],
        places=[[0], [1], [0], [1], [0]],
        sets=[[0], [1]],
        kinds=[0, 1],
        joint=[False, True, False, True, False],
        hold=[[5, 0], [0, 8], [2, 0], [0, 4], [1, 0]],
    )


def test_a_task_waits_for_the_one_that_held_its_link_until_then() -> None:
    graph = two_devices_and_a_link()
    pieces = critical_path(graph, reference.simulate(graph))
    assert pieces == (
        PathPiece(1, 0, 8, held=True),
        PathPiece(3, 8, 14, held=False),
        PathPiece(4, 14, 15, held=False),
    )


def test_without_tasks_there_is_no_path() -> None:
    graph = two_devices_and_a_link()
    graph.live[:] = False
    graph.edge_live[:] = False
    assert critical_path(graph, reference.simulate(graph)) == ()


@given(st.randoms(use_true_random=False))
def test_pieces_meet_from_the_beginning_to_the_makespan(random: Random) -> None:
    graph = random_graph(random)
    timeline = reference.simulate(graph)
    pieces = critical_path(graph, timeline)
    ends = [0, *(piece.end for piece in pieces)]
    assert [piece.start for piece in pieces] == ends[:-1]
    assert ends[-1] == timeline.makespan
    assert all(piece.start < piece.end for piece in pieces)


@given(st.randoms(use_true_random=False))
def test_each_piece_released_the_next(random: Random) -> None:
    graph = random_graph(random)
    timeline = reference.simulate(graph)
    pieces = critical_path(graph, timeline)
    for before, after in pairwise(pieces):
        if before.held:
            assert held_in_common(graph, before.task, after.task)
            order = timeline.order.tolist()
            assert order.index(before.task) < order.index(after.task)
        else:
            assert after.task in followers(graph, before.task)
            assert ends_when_ready(timeline, before.task, after.task)


def held_in_common(graph: TaskGraph, one: int, other: int) -> set[int]:
    """The resources that two tasks hold."""
    both = []
    for task in (one, other):
        sets = [place for place in graph.places[task].tolist() if place != NOWHERE]
        bounds = [(graph.set_start[place], graph.set_start[place + 1]) for place in sets]
        resources = {r for first, last in bounds for r in graph.set_resource[first:last].tolist()}
        both.append({r for r in resources if graph.hold[task, graph.resource_kind[r]]})
    return both[0] & both[1]


def followers(graph: TaskGraph, task: int) -> set[int]:
    edges = range(graph.succ_start[task], graph.succ_start[task + 1])
    return {int(graph.succ[edge]) for edge in edges if graph.edge_live[edge]}


def ends_when_ready(timeline: Timeline, before: int, after: int) -> bool:
    return int(timeline.end[before]) == int(timeline.ready[after])


@given(PLANS)
def test_collectives_add_up_to_what_tasks_take(plan: Plan) -> None:
    """Each task but for its rounding, and that of what it carries once more."""
    problem = walked(plan)[0].problem
    collectives = moves(problem)
    for task in problem.tasks.live.nonzero()[0].tolist():
        kind, subject = problem.labels.kind[task], problem.labels.subject[task]
        if not is_op_group_pass(kind) and kind not in ("update", "launch"):
            total = NANO * math.fsum(
                collective.seconds for collective in collectives[kind, subject]
            )
            assert abs(total - int(problem.tasks.duration[task])) <= 1.0 + 1e-9 * total


@given(PLANS)
def test_stretches_last_as_long_as_the_step(plan: Plan) -> None:
    simulation, path = walked(plan)
    path_stretches = stretches(simulation, path)
    step = simulation.prediction.step
    assert math.isclose(
        math.fsum(stretch.seconds for stretch in path_stretches), step, rel_tol=1e-9
    )
    assert math.isclose(math.fsum(stretch.share for stretch in path_stretches), 1.0, rel_tol=1e-9)
    assert math.isclose(math.fsum(by_category(path_stretches).values()), step, rel_tol=1e-9)


@given(PLANS)
def test_nothing_is_waited_for_longer_than_it_takes(plan: Plan) -> None:
    simulation, path = walked(plan)
    rounding = len(path) / NANO
    for cost in collective_costs(simulation, path):
        assert cost.exposed <= cost.seconds + rounding
    for kind in kind_costs(simulation, path):
        assert kind.exposed <= kind.seconds + rounding
        assert 0 <= kind.roofline <= 1 + 1e-9
    total = math.fsum(kind.share for kind in kind_costs(simulation, path))
    assert math.isclose(total, 1.0, rel_tol=1e-9)


def walked(plan: Plan) -> tuple[Simulation, tuple[PathPiece, ...]]:
    try:
        simulation = simulate(plan)
    except InputError:  # Micro-batches would go through a stage twice.
        reject()
    return simulation, critical_path(simulation.problem.tasks, simulation.timeline)


@pytest.fixture(scope="module")
def small() -> Simulation:
    return simulate(expert(transformer(), Cluster.named("dgx-h100", node=2, gpu=2)))


def test_layers_are_folded(small: Simulation) -> None:
    path_stretches = stretches(*walked(small.plan))
    names = {stretch.subject for stretch in path_stretches if is_op_group_pass(stretch.category)}
    assert "0.up" in names
    assert not any(name.startswith("1.") for name in names)
    assert [stretch.seconds for stretch in path_stretches] == sorted(
        (stretch.seconds for stretch in path_stretches), reverse=True
    )


def test_every_link_has_a_line(small: Simulation) -> None:
    costs = link_costs(*walked(small.plan))
    assert {cost.link for cost in costs} == set(small.problem.prices.kinds) - {"compute"}
    assert all(cost.seconds <= small.prediction.step for cost in costs)
    assert any(cost.bytes for cost in costs)


def test_operators_of_a_kind_are_counted(small: Simulation) -> None:
    costs = {cost.kind: cost for cost in kind_costs(*walked(small.plan))}
    assert costs["linear"].operators == 12
    assert "transpose" not in costs, "a view takes no time"


def test_gradients_that_are_summed_have_a_program() -> None:
    plan = data_parallel(transformer(), Cluster.named("dgx-h100", node=2, gpu=2))
    costs = collective_costs(*walked(plan))
    assert {cost.purpose for cost in costs} == {"gradients"}
    assert all(cost.program and cost.operation == "AllReduce" for cost in costs)
    assert {cost.over for cost in costs} == {"2 node and 2 gpu"}


def test_sharded_parameters_are_gathered() -> None:
    plan = data_parallel(transformer(), Cluster.named("dgx-h100", node=2, gpu=2))
    layouts = list(plan.layout.values())
    sharded = Plan.of("by hand", plan.graph, plan.cluster, layouts, Options(zero=1))
    costs = collective_costs(*walked(sharded))
    assert ("AllGather", "updated parameters") in {(it.operation, it.purpose) for it in costs}
    assert all(not it.program for it in costs if it.operation != "AllReduce")
