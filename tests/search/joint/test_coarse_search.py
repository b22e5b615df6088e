"""Frames and sketches: what is considered, in which order, and that saving saves."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.overhead import Overhead
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.memory import LIBRARY
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.search.joint.coarse.coarse_search import coarse_solutions
from meshwright.search.joint.coarse.global_config import (
    SAVINGS,
    GlobalConfig,
    MemorySaving,
    framed,
    micro_batches,
    savings,
    shapes,
)
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.coarse.layout_dp import LayoutWeights
from meshwright.search.joint.request.constraints import Constraints, parse_constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.request.violations import violations
from meshwright.sharding.layout import factors
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.memory.shard_bytes import communicators
from support.baseline_graphs import convolutional, transformer

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
FLAT = Cluster.named("flexflow-p100", node=1, gpu=4)
GRAPH = transformer(layers=4, batch=8)
ROOM = 1 << 40


@cache
def tables(cluster: Cluster = FOUR) -> tuple[CollectivePrices, OperatorPricer]:
    return CollectivePrices(Pricer(cluster, algorithm="best")), OperatorPricer(cluster.device)


def question(memory: int = ROOM, constraints: Constraints | None = None) -> PlanRequest:
    limits = constraints or Constraints()
    return PlanRequest(graph=GRAPH, cluster=FOUR, memory=Bytes(memory), constraints=limits)


def bench(memory: int = ROOM, constraints: Constraints | None = None) -> GraphContext:
    return GraphContext(question(memory, constraints), GRAPH, *tables())


def never() -> bool:
    return False


@pytest.mark.parametrize(("graph", "batch"), [(GRAPH, 8), (convolutional(batch=12), 12)])
def test_samples_are_those_of_the_batch(graph: OperatorGraph, batch: int) -> None:
    assert max(micro_batches(graph)) == batch


def test_shapes_without_constraints() -> None:
    """No stages with powers of two; stages along each level with a few micro-batches each."""
    pairs = list(shapes(question(), GRAPH))
    assert pairs == [
        ((), 1), ((), 2), ((), 4), ((), 8),
        ((0,), 8), ((0,), 4), ((0,), 2), ((1,), 8), ((1,), 4), ((1,), 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fixes", "forbids", "expected"),
    [
        (["stages=2"], [], {((0,), 8), ((0,), 4), ((0,), 2), ((1,), 8), ((1,), 4), ((1,), 2)}),
        (["stages=2", "micro-batches=4"], ["stage@gpu"], {((0,), 4)}),
        (["stages=1", "micro-batches=4"], [], {((), 4)}),
    ],
)
def test_shapes_with_constraints(
    fixes: list[str], forbids: list[str], expected: set[tuple[tuple[int, ...], int]]
) -> None:
    request = question(constraints=parse_constraints(forbids=forbids, fixes=fixes))
    assert set(shapes(request, GRAPH)) == expected


@pytest.mark.parametrize("fixes", [[], ["zero=2"], ["recompute=no"], ["zero=3", "recompute=yes"]])
def test_savings_keep_to_what_is_fixed(fixes: list[str]) -> None:
    wanted = dict(fix.split("=") for fix in fixes)
    offered = savings(parse_constraints(fixes=fixes), 2)
    assert set(offered) == {
        saving
        for saving in SAVINGS
        if wanted.get("zero", str(saving.zero)) == str(saving.zero)
        and (wanted.get("recompute", "") in ("", "yes" if saving.recompute else "no"))
    }


def test_where_there_is_room_nothing_is_saved() -> None:
    candidates = coarse_solutions(bench(), never)
    assert candidates
    assert not any(solution.global_config.options.recompute for solution in candidates)
    assert {
        solution.global_config.options.micro_batches
        for solution in candidates
        if not solution.global_config.stages
    } == {1}
    estimates = [solution.estimate for solution in candidates]
    assert estimates == sorted(estimates)


def test_where_there_is_little_room_those_that_should_fit_come_first() -> None:
    free = coarse_solutions(bench(), never)[0]
    tight = bench(LIBRARY + int(free.bytes - LIBRARY) // 4)
    candidates = coarse_solutions(tight, never)
    fits = [tight.fits(solution) for solution in candidates]
    assert any(fits)
    assert fits == sorted(fits, reverse=True)
    for part, key in ((True, "estimate"), (False, "bytes")):
        values = [
            getattr(solution, key)
            for solution, fit in zip(candidates, fits, strict=True)
            if fit is part
        ]
        assert values == sorted(values)
    assert candidates[0].bytes < free.bytes


OVERHEAD = Overhead(
    context=Bytes(3 << 20), communicator=Bytes(1 << 20), unused=0.1, source="made up for this test"
)
HEAVY = replace(FOUR, device=replace(FOUR.device, overhead=OVERHEAD))


def heavy(memory: int = ROOM) -> GraphContext:
    request = PlanRequest(graph=GRAPH, cluster=HEAVY, memory=Bytes(memory))
    return GraphContext(request, GRAPH, *tables(HEAVY))


@pytest.mark.parametrize("stages", [(), (0,)])
def test_the_framework_counts_as_in_a_simulation(stages: tuple[int, ...]) -> None:
    context, global_config = heavy(), framed(question(), stages, 2, MemorySaving(0, False))
    solution = context.solution(global_config, LayoutWeights(), fine=False)
    bare = bench().solution(global_config, LayoutWeights(), fine=False)
    groups = communicators(context.roles(solution))
    held = context.simulated(
        "sketch", global_config.options, context.roles(solution)
    ).prediction.memory
    assert held.framework == OVERHEAD.held(held.total - held.framework, groups)
    assert solution.bytes - bare.bytes == OVERHEAD.held(round(bare.bytes), groups)
    room = context.room(solution)
    assert OVERHEAD.held(ROOM, groups) == ROOM - LIBRARY - room


def test_what_fits_only_without_the_framework_is_saved() -> None:
    free, more = coarse_solutions(bench(), never)[0], coarse_solutions(heavy(), never)[0]
    limit = int(free.bytes + more.bytes) // 2
    assert free.bytes < limit < more.bytes
    options = coarse_solutions(heavy(limit), never)[0].global_config.options
    assert options.zero or options.recompute or options.micro_batches > 1


def test_with_no_room_at_all_every_frame_is_tried_with_every_saving() -> None:
    candidates = coarse_solutions(bench(1), never)
    tried = {
        (solution.global_config.stages, solution.global_config.options.micro_batches)
        for solution in candidates
    }
    assert tried == set(shapes(question(1), GRAPH))
    saved = {
        MemorySaving(options.zero, options.recompute, options.sync_each)
        for options in (solution.global_config.options for solution in candidates)
    }
    assert saved == set(savings(Constraints(), 2)) > set(savings(Constraints(), 1))


def test_gradients_are_held_in_shards_before_layers_run_again() -> None:
    """Where that is what it takes to fit: FSDP2's default."""
    graph, limits = transformer(layers=4, batch=32), parse_constraints(fixes=["sample=4"])
    asked = PlanRequest(graph=graph, cluster=FOUR, memory=Bytes(ROOM), constraints=limits)
    config = framed(asked, (), 8, MemorySaving(3, recompute=False, sync_each=True))
    roomy = GraphContext(asked, graph, *tables())
    need = roomy.solution(config, LayoutWeights(sums=0.5), fine=False).bytes
    context = GraphContext(replace(asked, memory=Bytes(int(need) + 1)), graph, *tables())
    fitting = [
        solution.global_config.options
        for solution in coarse_solutions(context, never)
        if context.fits(solution) and not solution.global_config.stages
    ]
    assert config.options in fitting
    assert not any(options.recompute and options.micro_batches == 8 for options in fitting)


EIGHT = Cluster.named("flexflow-p100", node=1, gpu=8)
DOZEN = Cluster.named("flexflow-p100", node=12, gpu=2)


@pytest.mark.parametrize("fixes", [[], ["stages=8"]])
def test_on_a_level_of_three_factors_with_no_room_at_all(fixes: list[str]) -> None:
    request = PlanRequest(
        graph=GRAPH, cluster=EIGHT, memory=Bytes(1), constraints=parse_constraints(fixes=fixes)
    )
    candidates = coarse_solutions(GraphContext(request, GRAPH, *tables(EIGHT)), never)
    assert max(solution.global_config.degree(factors(EIGHT)) for solution in candidates) == 8


def test_every_number_of_stages_that_a_level_can_hold() -> None:
    request = PlanRequest(graph=GRAPH, cluster=DOZEN, memory=Bytes(ROOM))
    degrees = [
        (stages, GlobalConfig(stages, Options()).degree(factors(DOZEN)))
        for stages, _ in shapes(request, GRAPH)
    ]
    assert list(dict.fromkeys(degrees)) == [
        ((), 1), ((0,), 2), ((2,), 3), ((0, 1), 4), ((1, 2), 6), ((0, 1, 2), 12), ((3,), 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "runs"), [(3, {(2,)}), (24, {(0, 1, 2, 3)}), (6, {(1, 2), (2, 3)})]
)
def test_stages_that_are_fixed_have_a_shape(stages: int, runs: set[tuple[int, ...]]) -> None:
    """Also across levels, and with micro-batches that no number of stages divides."""
    constraints = parse_constraints(fixes=[f"stages={stages}"])
    request = PlanRequest(graph=GRAPH, cluster=DOZEN, memory=Bytes(ROOM), constraints=constraints)
    pairs = list(shapes(request, GRAPH))
    assert {run for run, _ in pairs} == runs
    assert all(8 % micro == 0 and micro > 1 for _, micro in pairs)


def test_who_has_enough_gets_what_there_is() -> None:
    assert {
        (solution.global_config.stages, solution.global_config.options.micro_batches)
        for solution in coarse_solutions(bench(), lambda: True)
    } == {((), 1)}
    asked = iter([False, True, True, True, True, True, True, True, True, True, True])
    assert len(coarse_solutions(bench(1), lambda: next(asked))) >= 1


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("stages", [(), (0,), (1,)])
def test_a_sketch_is_a_plan_that_can_be_simulated(stages: tuple[int, ...], fine: bool) -> None:
    context = bench()
    global_config = framed(context.question, stages, 4, MemorySaving(1, True))
    solution = context.solution(global_config, LayoutWeights(), fine=fine)
    plan = context.simulated("sketch", global_config.options, context.roles(solution)).plan
    places = {tuple(layout.coordinates()[f] for f in stages) for layout in plan.layout.values()}
    assert len(places) == global_config.degree(factors(FOUR))
    assert context.solution(global_config, LayoutWeights(), fine=fine).estimate == solution.estimate


def test_the_same_layouts_with_other_options() -> None:
    context = bench()
    solution = context.solution(GlobalConfig((), Options()), LayoutWeights(), fine=False)
    other = context.again(solution, GlobalConfig((), Options(recompute=True)))
    assert other is not None
    assert np.array_equal(other.chosen, solution.chosen)
    assert other.estimate > solution.estimate
    assert other.bytes < solution.bytes


def test_layouts_that_micro_batches_are_too_small_for() -> None:
    context = bench(constraints=parse_constraints(fixes=["sample=4"]))
    solution = context.solution(GlobalConfig((), Options()), LayoutWeights(), fine=False)
    assert context.again(solution, GlobalConfig((), Options(micro_batches=2))) is not None
    assert context.again(solution, GlobalConfig((), Options(micro_batches=4))) is None


@pytest.mark.parametrize(
    "constraints",
    [
        parse_constraints(["*.up=sample channel"]),
        parse_constraints(["0.up=replica replica"]),
        parse_constraints(forbids=["sample@node", "replica@gpu"]),
        parse_constraints(fixes=["sample=2"]),
        parse_constraints(fixes=["sample=2", "stages=2", "micro-batches=2"]),
    ],
)
@pytest.mark.parametrize("cluster", [FOUR, FLAT], ids=["2x2", "4"])
def test_sketches_keep_constraints(cluster: Cluster, constraints: Constraints) -> None:
    """Also degrees that no level has as a whole."""
    if "node" in str(constraints.forbidden) and cluster is FLAT:
        pytest.skip("there is one node")
    context = GraphContext(
        PlanRequest(graph=GRAPH, cluster=cluster, memory=Bytes(ROOM), constraints=constraints),
        GRAPH,
        *tables(cluster),
    )
    candidates = coarse_solutions(context, never)
    assert candidates
    kept = [
        not violations(
            context.simulated("sketch", it.global_config.options, context.roles(it)).plan,
            constraints,
        )
        for it in candidates[:6]
    ]
    assert all(kept)
