"""Costs that add up are the durations that laying out writes, wherever a tensor has one reader."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors, inner_group_sizes
from meshwright.sharding.reshard import Codes
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.problem import StepModel, codes_of
from meshwright.simulate.tasks import Indices
from support.plan_strategies import CLUSTERS, GRAPHS, legal
from support.training_graphs import random_graph

MICRO = (1, 2, 3)


class Both:
    """A graph laid out, and what adds up for the same roles."""

    def __init__(self, plan: Plan, prices: CollectivePrices, operators: OperatorPricer) -> None:
        options = plan.options
        self.problem = StepModel(
            plan.graph, plan.cluster, options, prices=prices, operators=operators
        )
        self.costing = AdditiveCosts(plan.graph, plan.cluster, prices, operators, options)
        self.roles = self.problem.codes([plan.layout[unit.name] for unit in plan.units])
        self.problem.lay(self.roles)
        self.micro, self.zero = options.micro_batches, options.zero

    def took(self, tasks: Indices) -> int:
        """Nanoseconds of tasks, none of those that are not live."""
        graph = self.problem.tasks
        return sum(int(graph.duration[t]) for t in np.ravel(tasks) if t >= 0 and graph.live[t])

    def row(self, unit: int) -> Codes:
        return self.roles[unit : unit + 1]

    def told_apart(self, unit: int) -> bool:
        """Whether nobody else reads what a unit reads, so that every leg is carried."""
        return all(
            [other.tensor for other in bundle.consumers].count(consumer.tensor) == 1
            for bundle in self.problem.bundles
            for consumer in bundle.consumers
            if unit == consumer.unit
        )

    def read(self, unit: int, parameters: bool) -> list[int]:
        """The bundles that a unit reads."""
        return [
            number
            for number, bundle in enumerate(self.problem.bundles)
            if bundle.parameters == parameters
            and any(consumer.unit == unit for consumer in bundle.consumers)
        ]


@cache
def tables(cluster: int) -> tuple[CollectivePrices, OperatorPricer]:
    machine = CLUSTERS[cluster]
    return CollectivePrices(Pricer(machine, algorithm="best")), OperatorPricer(machine.device)


@st.composite
def laid(draw: st.DrawFn) -> Both:
    """Graphs with random layouts, also idle ones, some of which micro-batches are too small for."""
    cluster = draw(st.integers(0, len(CLUSTERS) - 1))
    graph = draw(
        st.sampled_from(GRAPHS)
        | st.integers(0, 10_000).map(lambda seed: random_graph(Random(seed), 6))
    )
    options = Options(
        optimizer=draw(st.sampled_from(("sgd", "adam"))),
        micro_batches=draw(st.sampled_from(MICRO)),
        zero=draw(st.integers(0, 3)),
    )
    machine = CLUSTERS[cluster]
    if options.zero:
        within = draw(st.sampled_from((0, *inner_group_sizes(factors(machine)))))
        options = replace(options, shard_within=within)
    for micro in (options.micro_batches, 1):
        chosen = [draw(st.sampled_from(choices)) for choices in legal(graph, machine)]
        try:
            used = replace(options, micro_batches=micro)
            return Both(Plan.of("random", graph, machine, chosen, used), *tables(cluster))
        except InputError:
            continue
    raise AssertionError("one micro-batch is never too small")


@given(laid())
def test_units_and_legs_cost_what_their_tasks_take(both: Both) -> None:
    """To a nanosecond for each task that is rounded."""
    template = both.problem.template
    for unit in range(len(both.problem.units)):
        if not both.told_apart(unit):
            continue
        costs = both.costing.unit(unit, both.row(unit), both.zero)
        forward, backward = float(costs.forward[0]), float(costs.backward[0])
        for joint in both.costing.joints:
            if joint.reader == unit:
                consumer = both.costing.consumer(joint.kind, both.row(joint.maker), both.row(unit))
                forward, backward = (
                    forward + float(consumer.forward[0, 0]),
                    backward + float(consumer.backward[0, 0]),
                )
        passed, kept = both.read(unit, False), both.read(unit, True)
        often = 1 if both.zero == 3 else both.micro
        carried = both.took(template.carry[passed, 0]) + both.took(template.carry[kept, 0]) / often
        returned = both.took(template.carry_back[passed, 0])
        if both.zero == 3:
            returned += both.took(template.again[kept, 0])
        slack = len(passed) + len(kept)
        assert forward == pytest.approx(both.took(template.forward[unit, 0]) + carried, abs=slack)
        assert backward == pytest.approx(
            both.took(template.backward[unit, 0]) + returned, abs=slack
        )


@given(laid())
def test_parameters_cost_what_their_sums_and_updates_take(both: Both) -> None:
    template = both.problem.template
    for unit in range(len(both.problem.units)):
        costs = both.costing.unit(unit, both.row(unit), both.zero)
        kept = [
            number
            for number, bundle in enumerate(both.problem.bundles)
            if bundle.parameters and bundle.maker == unit
        ]
        assert float(costs.update[0]) == pytest.approx(
            both.took(template.update[kept]), abs=max(1, len(kept))
        )
        if both.told_apart(unit):
            sums = both.took(template.carry_back[kept, 0]) + both.took(template.regather[kept])
            assert float(costs.sums[0]) == pytest.approx(sums, abs=max(1, 2 * len(kept)))


@given(laid())
def test_parameters_that_several_units_share_cost_what_lies_otherwise(both: Both) -> None:
    """Without ZeRO; two units each: of more, those that read alike are carried once."""
    if both.zero:
        return
    template = both.problem.template
    for number, bundle in enumerate(both.problem.bundles):
        readers = {consumer.unit for consumer in bundle.consumers}
        if not bundle.parameters or len(readers) != 2 or len(bundle.sources) != 1:
            continue
        maker = bundle.maker
        if [b for b in both.read(maker, True) if both.problem.bundles[b].maker == maker] != [
            number
        ]:
            continue
        consumers = [
            both.costing.consumer(joint.kind, both.row(maker), both.row(joint.reader))
            for joint in both.costing.joints
            if joint.maker == maker and joint.reader in readers
        ]
        total = float(both.costing.unit(maker, both.row(maker)).sums[0])
        total += sum(float(consumer.sums[0, 0]) for consumer in consumers)
        took = both.took(template.carry[number, 0]) + both.took(template.carry_back[number, 0])
        assert total == pytest.approx(took, abs=2)


@given(laid())
def test_layouts_at_once_cost_what_each_costs_by_itself(both: Both) -> None:
    problem = both.problem
    fresh = AdditiveCosts(
        problem.graph, problem.cluster, problem.prices, problem.operators, problem.options
    )
    rows = [
        codes_of([unit] * len(choices), choices, len(problem.factors))[:8]
        for unit, choices in zip(problem.units, legal(problem.graph, problem.cluster), strict=True)
    ]
    rows = [part[fresh.legal(unit, part)] for unit, part in enumerate(rows)]
    for unit, part in enumerate(rows):
        together = both.costing.unit(unit, part, both.zero)
        alone = [fresh.unit(unit, row[None], both.zero) for row in part]
        for costs, each in zip(together, zip(*alone, strict=True), strict=True):
            assert np.array_equal(costs, np.concatenate(each))
    for joint in both.costing.joints:
        makers, readers = rows[joint.maker][:3], rows[joint.reader][:3]
        pairs = both.costing.consumer(joint.kind, makers, readers)
        for x, maker in enumerate(makers):
            for y, reader in enumerate(readers):
                consumer = fresh.consumer(joint.kind, maker[None], reader[None])
                assert [table[x, y] for table in pairs] == [table[0, 0] for table in consumer]
