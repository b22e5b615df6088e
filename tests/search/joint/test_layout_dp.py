"""Layouts by dynamic programming are those of brute force; nodes and totals mean what they say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.search.joint.coarse.global_config import GlobalConfig
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.coarse.layout_dp import LayoutDP, LayoutWeights
from meshwright.search.joint.request.constraints import Constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import layouts
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.problem import codes_of
from meshwright.solvers.variable_elimination import cheapest
from support.baseline_graphs import recurrent, transformer
from support.small_graphs import small_graph
from support.training_graphs import random_graph

CLUSTERS = (
    Cluster.named("flexflow-p100", node=2, gpu=2),
    Cluster.named("flexflow-p100", node=1, gpu=3),
    Cluster.named("dgx-a100", node=1, gpu=4),
)
MOST = 20_000
"""Choices of all units that are tried."""


@cache
def tables(cluster: int) -> tuple[CollectivePrices, OperatorPricer]:
    machine = CLUSTERS[cluster]
    return CollectivePrices(Pricer(machine, algorithm="best")), OperatorPricer(machine.device)


def bench_of(
    graph: OperatorGraph, cluster: int = 0, constraints: Constraints | None = None
) -> GraphContext:
    machine = CLUSTERS[cluster]
    question = PlanRequest(
        graph=graph,
        cluster=machine,
        memory=Bytes(1 << 40),
        constraints=constraints or Constraints(),
    )
    return GraphContext(question, graph, *tables(cluster))


WEIGHTS = st.builds(
    LayoutWeights,
    compute=st.sampled_from((0.0, 0.2, 1.0)),
    sums=st.sampled_from((0.0, 0.3, 1.0)),
    together=st.booleans(),
    memory=st.sampled_from((0.0, 0.01, 10.0)),
)
OPTIONS = st.builds(
    Options,
    micro_batches=st.sampled_from((1, 2)),
    zero=st.integers(0, 3),
    recompute=st.booleans(),
)


@st.composite
def fields(draw: st.DrawFn) -> LayoutDP:
    """Small graphs whose every layout can be tried."""
    random = Random(draw(st.integers(0, 10_000)))
    graph = small_graph(random) if draw(st.booleans()) else random_graph(random, 4)
    context = bench_of(graph, draw(st.integers(0, len(CLUSTERS) - 1)))
    return context.field(GlobalConfig((), draw(OPTIONS)))


def every_row(field: LayoutDP, node: int) -> list[Codes]:
    """Every layout of a node without idle devices, from the definition of layouts."""
    costing = field.costing
    unit = costing.units[field.first[node]]
    legal = layouts(unit.extents, costing.cluster, symmetric=False)
    rows = [layout for layout in legal if not any(role.startswith("@") for role in layout.roles)]
    codes = codes_of([unit] * len(rows), rows, len(costing.factors))
    micro = costing.options.micro_batches
    sizes = np.array([factor.size for factor in costing.factors])
    return [
        row
        for row in codes
        if all(
            unit.cuttable(n, int(np.where(row == n, sizes, 1).prod()) * unit.micro_ways(n, micro))
            for n in range(len(unit.splits))
        )
    ]


def whole(field: LayoutDP) -> Codes:
    return np.full((len(field.first), len(field.costing.factors)), WHOLE, np.int8)


def brute(field: LayoutDP, rows: Sequence[Sequence[Codes]], weights: LayoutWeights) -> float:
    return min(field.cost(np.array(chosen), weights) for chosen in product(*rows))


@given(fields(), WEIGHTS)
@settings(max_examples=30)
def test_all_factors_at_once_give_what_brute_force_gives(
    field: LayoutDP, weights: LayoutWeights
) -> None:
    rows = [every_row(field, node) for node in range(len(field.first))]
    assume(np.prod([len(node_rows) for node_rows in rows]) <= 600)
    blocks = [(f,) for f in range(len(field.costing.factors))]
    chosen, cost = field.better(whole(field), weights, blocks)
    assert cost == pytest.approx(field.cost(chosen, weights), rel=1e-12)
    least = brute(field, rows, weights)
    assert cost >= least * (1 - 1e-12)
    choices = [field.choices(node, row, blocks) for node, row in enumerate(whole(field))]
    if cheapest(field.graph(choices, weights)).left == 0:
        assert cost == pytest.approx(least, rel=1e-12)


@given(fields())
def test_choices_along_all_factors_are_all_layouts(field: LayoutDP) -> None:
    blocks = [(f,) for f in range(len(field.costing.factors))]
    for node, start in enumerate(whole(field)):
        choices = field.choices(node, start, blocks)
        slow = every_row(field, node)
        assert len({row.tobytes() for row in choices}) == len(choices) == len(slow)
        assert {row.tobytes() for row in choices} == {row.tobytes() for row in slow}


@given(fields(), WEIGHTS, st.randoms(use_true_random=False))
def test_steps_and_descents_never_get_worse(
    field: LayoutDP, weights: LayoutWeights, random: Random
) -> None:
    rows = [every_row(field, node) for node in range(len(field.first))]
    start = np.array([random.choice(node_rows) for node_rows in rows])
    before = field.cost(start, weights)
    block = (random.randrange(start.shape[1]),)
    stepped, cost = field.better(start, weights, [block])
    assert cost <= before * (1 + 1e-12)
    others = [f for f in range(start.shape[1]) if f not in block]
    assert np.array_equal(stepped[:, others], start[:, others])
    chosen, cost = field.descend(start, weights)
    assert cost <= before * (1 + 1e-12)
    assert cost == pytest.approx(field.cost(chosen, weights), rel=1e-12)
    legal = [{row.tobytes() for row in node_rows} for node_rows in rows]
    assert all(row.tobytes() in known for row, known in zip(chosen, legal, strict=True))


@given(fields(), WEIGHTS, st.randoms(use_true_random=False))
def test_totals_add_up_to_the_cost(field: LayoutDP, weights: LayoutWeights, random: Random) -> None:
    """Where readers of one tensor count once and computing wholly, as they do in totals."""
    weights = weights._replace(together=True, compute=1.0)
    rows = [every_row(field, node) for node in range(len(field.first))]
    chosen = np.array([random.choice(node_rows) for node_rows in rows])
    total = field.totals(chosen)
    micro = field.costing.options.micro_batches
    added = micro * total.chain + weights.sums * total.sums + total.update
    added += weights.memory * total.bytes
    assert added == pytest.approx(field.cost(chosen, weights), rel=1e-9)


@given(fields(), WEIGHTS, st.randoms(use_true_random=False))
def test_a_cost_is_that_of_its_units_and_legs(
    field: LayoutDP, weights: LayoutWeights, random: Random
) -> None:
    """The slow twin: unit by unit and leg by leg, whatever shares a node or a kind."""
    costing, micro = field.costing, field.costing.options.micro_batches
    rows = [every_row(field, node) for node in range(len(field.first))]
    chosen = np.array([random.choice(node_rows) for node_rows in rows])
    roles = field.roles(chosen)
    expected = 0.0
    for unit, row in enumerate(roles):
        costs = costing.unit(unit, row[None], field._zero)
        computing = micro * float(costs.forward[0] + costs.backward[0]) + float(costs.update[0])
        expected += weights.compute * computing
        expected += weights.sums * float(costs.sums[0])
        expected += weights.memory * float(field._weigh(unit, row[None])[0])
    for joint in costing.joints:
        consumer = costing.consumer(joint.kind, roles[joint.maker][None], roles[joint.reader][None])
        readers = joint.shared if weights.together else 1
        expected += micro * float(consumer.forward[0, 0] + consumer.backward[0, 0]) / readers
        expected += weights.sums * float(consumer.sums[0, 0])
    assert field.cost(chosen, weights) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("graph", [transformer(layers=3), recurrent()], ids=lambda g: g.name)
def test_equal_units_of_repeated_layers_are_laid_out_alike(graph: OperatorGraph) -> None:
    context = bench_of(graph)
    global_config = GlobalConfig((), Options())
    roles = context.roles(context.solution(global_config, LayoutWeights(), fine=True))
    number = {unit.name: n for n, unit in enumerate(units(graph))}
    compared = 0
    for repeat in layers(graph):
        first = [graph.operators[i].name for i in repeat.layer(0)]
        for copy in range(1, repeat.count):
            names = [graph.operators[i].name for i in repeat.layer(copy)]
            for one, other in zip(first, names, strict=True):
                if one in number and other in number:
                    assert np.array_equal(roles[number[one]], roles[number[other]])
                    compared += 1
    assert compared


def test_units_that_share_a_weight_are_laid_out_alike() -> None:
    graph = parse_graph(
        """graph tied
        input x: float32[n=8, d=6]
        parameter w: float32[o=6, i=6]
        operator a: a: float32[n=8, d=6] = linear(x, w)
        operator b: b: float32[n=8, d=6] = relu(a)
        operator c: c: float32[n=8, d=6] = linear(b, w)
        operator d: d: float32[n=8, d=6] = exp(c)
        output d"""
    )
    field = bench_of(graph).field(GlobalConfig((), Options()))
    assert field.node == [0, 1, 0, 2]


def test_a_pin_tells_one_layer_from_the_others() -> None:
    graph = transformer(layers=3)
    pinned = Constraints(pinned=(("1.up", "replica replica"),))
    context = bench_of(graph, constraints=pinned)
    field = context.field(GlobalConfig((), Options()))
    number = {unit.name: n for n, unit in enumerate(units(graph))}
    assert field.node[number["0.up"]] == field.node[number["2.up"]]
    assert field.node[number["1.up"]] != field.node[number["0.up"]]
    roles = context.roles(context.solution(GlobalConfig((), Options()), LayoutWeights(), fine=True))
    assert roles[number["1.up"]].tolist() == [WHOLE, WHOLE]
