"""Layouts in the task graph, against a slow twin; and changes that leave nothing behind."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import LAYERWISE, Options
from meshwright.sharding.layout import factors, inner_group_sizes
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, at
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.move import apply, move_buffers, undo, undo_move
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import NOWHERE
from support.baseline_graphs import convolutional, recommendation, recurrent, transformer
from support.slow_lay import Cube, Label, Task, Twin
from support.training_graphs import random_graph, tiny

RANDOMS = st.randoms(use_true_random=False)
CLUSTERS = (
    Cluster.named("flexflow-p100", node=2, gpu=2),
    Cluster.named("flexflow-p100", node=2, gpu=3),
    Cluster.named("summit", node=2),
    Cluster.named("dgx-a100", node=1, gpu=2),
)


@cache
def prices_of(cluster: Cluster) -> CollectivePrices:
    return CollectivePrices(Pricer(cluster, algorithm="best"))


def random_roles(random: Random, problem: StepModel) -> Codes:
    """Legal roles of all units; many units have those of the one before, as far as they can."""
    rows: list[list[int]] = []
    for unit in problem.units:
        row: list[int] = []
        for f, factor in enumerate(problem.factors):
            states = [WHOLE, *range(len(unit.splits)), *range(len(unit.splits))]
            if problem.apart[f]:
                states += map(at, range(factor.size))
            if rows and random.random() < 0.4 and rows[-1][f] in states:
                states = [rows[-1][f]]
            row.append(random.choice(states))
            if row[-1] >= 0 and not cuttable(problem, unit, row):
                row[-1] = WHOLE
        rows.append(row)
    return np.array(rows, np.int8).reshape(len(rows), len(problem.factors))


def cuttable(problem: StepModel, unit: OpGroup, row: list[int]) -> bool:
    split, degree = row[-1], 1
    for role, factor in zip(row, problem.factors, strict=False):
        degree *= factor.size if role == split else 1
    return unit.cuttable(split, degree * unit.micro_ways(split, problem.options.micro_batches))


def laid(problem: StepModel) -> tuple[dict[Label, Task], dict[tuple[Label, Label], list[bool]]]:
    """The live tasks of a problem and the liveness of all its edges, by labels."""
    labels = list(zip(*problem.labels, strict=True))
    graph = problem.tasks
    tasks = {}
    for number, label in enumerate(labels):
        joint = label[0] not in ("forward", "backward", "update")
        assert graph.joint[number] == joint
        if graph.live[number]:
            sets = [int(p) for p in graph.places[number] if p != NOWHERE]
            tasks[label] = Task(
                int(graph.duration[number]),
                tuple(cube_of(problem, place) for place in sets),
                tuple(graph.hold[number].tolist()),
            )
    edges = defaultdict(list)
    for number, label in enumerate(labels):
        for edge in range(graph.succ_start[number], graph.succ_start[number + 1]):
            edges[label, labels[graph.succ[edge]]].append(bool(graph.edge_live[edge]))
    return tasks, edges


def cube_of(problem: StepModel, number: int) -> Cube:
    digits: list[int | None] = []
    for radix in reversed(problem.places.radix.tolist()):
        number, digit = divmod(number, radix)
        digits.append(digit - 1 if digit else None)
    return tuple(reversed(digits))


def compare(problem: StepModel, roles: Codes) -> None:
    twin = Twin(problem, roles)
    tasks, edges = laid(problem)
    assert set(tasks) == set(twin.tasks)
    for label, task in tasks.items():
        expected = twin.tasks[label]
        assert task.cubes == expected.cubes, label
        # Times are sums of the same numbers, perhaps in another order before they are rounded.
        assert abs(task.duration - expected.duration) <= 1, label
        pairs = zip(task.hold, expected.hold, strict=True)
        assert all(abs(hold - other) <= 1 for hold, other in pairs), label
    assert set(edges) == set(twin.edges)
    for pair, live in edges.items():
        assert sorted(live) == sorted(twin.edges[pair]), pair
    assert problem.moved == pytest.approx(twin.moved)
    alive = problem.tasks.live
    for number in range(len(alive)):
        for edge in range(problem.tasks.succ_start[number], problem.tasks.succ_start[number + 1]):
            if problem.tasks.edge_live[edge]:
                assert alive[number]
                assert alive[problem.tasks.succ[edge]]


def drawn_problem(random: Random, graph: OperatorGraph) -> StepModel:
    cluster, zero = random.choice(CLUSTERS), random.randint(0, 3)
    options = Options(
        optimizer=random.choice(("sgd", "adam")),
        micro_batches=random.choice((1, 2)),
        zero=zero,
        shard_within=random.choice((0, *inner_group_sizes(factors(cluster)))) if zero else 0,
        recompute=random.random() < 0.3,
        bucket=Bytes(random.choice((0, 0, 500, 10**9, LAYERWISE))),
        early=random.random() < 0.3,
    )
    prices = prices_of(cluster)
    apart = [random.random() < 0.7 for _ in prices.factors]
    options = replace(options, sync_each=zero > 1 and random.random() < 0.5)
    return StepModel(graph, cluster, options, apart=apart, prices=prices)


GRAPHS = (convolutional(), transformer(2), recurrent(), recommendation(20, 90, 40))


@given(RANDOMS)
def test_random_graphs_are_laid_as_by_the_twin(random: Random) -> None:
    problem = drawn_problem(random, random_graph(random))
    roles = random_roles(random, problem)
    problem.lay(roles)
    compare(problem, roles)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("zero", range(4))
def test_small_graphs_are_laid_as_by_the_twin(graph: OperatorGraph, zero: int) -> None:
    random = Random(zero)
    for micro in (1, 2):
        for again in ({}, {"recompute": True}, {"recompute": True, "recompute_layers": 1}):
            each = zero > 1 and micro > 1
            options = Options(zero=zero, micro_batches=micro, sync_each=each, **again)
            problem = StepModel(graph, CLUSTERS[1], options, prices=prices_of(CLUSTERS[1]))
            for _ in range(3):
                roles = random_roles(random, problem)
                problem.lay(roles)
                compare(problem, roles)


@pytest.mark.parametrize("name", ["inception-v3", "bert-large", "mixtral-8x7b"])
def test_tiny_models_are_laid_as_by_the_twin(name: str) -> None:
    random = Random(name)
    problem = drawn_problem(random, tiny(name))
    roles = random_roles(random, problem)
    problem.lay(roles)
    compare(problem, roles)


def arrays(problem: StepModel) -> list[np.ndarray]:
    tasks = problem.tasks
    mutable = (tasks.live, tasks.duration, tasks.places, tasks.hold, tasks.edge_live)
    return [array.copy() for array in (*mutable, problem.roles, problem.room.moved)]


def same(one: StepModel, other: StepModel) -> None:
    """Live tasks are equal in everything; of the others only that they are not live."""
    live = one.tasks.live
    assert np.array_equal(live, other.tasks.live)
    for name in ("duration", "places", "hold"):
        ours, theirs = getattr(one.tasks, name), getattr(other.tasks, name)
        assert np.array_equal(ours[live], theirs[live]), name
    assert np.array_equal(one.tasks.edge_live, other.tasks.edge_live)
    assert np.array_equal(one.room.moved, other.room.moved)
    assert np.array_equal(one.roles, other.roles)


def twice(random: Random) -> tuple[StepModel, StepModel]:
    """A problem and a fresh one like it."""
    graph = random.choice((*GRAPHS, random_graph(random)))
    one = drawn_problem(random, graph)
    return one, StepModel(graph, one.cluster, one.options, apart=one.apart, prices=one.prices)


@given(RANDOMS)
def test_what_was_laid_before_leaves_nothing(random: Random) -> None:
    used, fresh = twice(random)
    used.lay(random_roles(random, used))
    roles = random_roles(random, used)
    used.lay(roles)
    fresh.lay(roles)
    same(used, fresh)


@given(RANDOMS)
def test_a_change_is_a_new_layout_and_can_be_taken_back(random: Random) -> None:
    changed, fresh = twice(random)
    before = random_roles(random, changed)
    changed.lay(before)
    log, kept = undo(changed, len(changed.units)), arrays(changed)
    for _ in range(3):
        wanted = random_roles(random, changed)
        count = random.randint(1, len(changed.units))
        which = np.array(sorted(random.sample(range(len(changed.units)), count)), np.int32)
        roles = np.ascontiguousarray(wanted[which])
        while (status := apply(move_buffers(changed), log, which, roles, count)) != FOUND:
            assert all(map(np.array_equal, arrays(changed), kept)), "a failed change left traces"
            changed.supply(status)
        after = before.copy()
        after[which] = roles
        fresh.lay(after)
        same(changed, fresh)
        if random.random() < 0.7:
            undo_move(changed.tasks, changed.roles, changed.room.moved, log)
            assert [np.array_equal(a, b) for a, b in zip(arrays(changed), kept, strict=True)] == [
                True
            ] * len(kept)
        else:
            before, kept = after, arrays(changed)
