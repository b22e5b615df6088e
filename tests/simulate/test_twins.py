"""What is compiled or computed in arrays, against slow twins, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.plan.plan import Plan
from meshwright.sharding.allowed import ANYTHING, Allowed
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate import full
from meshwright.simulate.host import host_launches
from meshwright.simulate.memory.memory_timeline import curves
from meshwright.simulate.memory.shard_bytes import ShardBytes
from meshwright.simulate.problem import StepModel
from meshwright.simulate.schedule_edges import Label, ahead, chained
from meshwright.simulate.tasks import NOWHERE, Ints, TaskGraph, loads
from support.baseline_graphs import transformer
from support.plan_strategies import plans
from support.slow_build import skeleton
from support.slow_held import curves as slow_curves
from support.slow_parts import Parts as SlowParts


def ready(plan: Plan) -> StepModel:
    """A plan laid out, without the order of a pipeline if it goes through its stages in none."""
    layouts = [plan.layout[unit.name] for unit in plan.units]
    arguments = plan.graph, plan.cluster, plan.options
    try:
        problem = StepModel(*arguments, pipeline=layouts)
    except InputError:
        problem = StepModel(*arguments)
    problem.lay(problem.codes(layouts))
    return problem


def arrays(record: Any) -> dict[str, Any]:
    """What a record holds, each array with its dtype, as text."""
    fields = record._asdict().items()
    return {
        name: (value.dtype, value.shape, value.tobytes()) if hasattr(value, "dtype") else value
        for name, value in fields
    }


def slow_loads(graph: TaskGraph) -> Ints:
    """How long each resource is held in all, task by task."""
    loads = np.zeros(len(graph.resource_kind), np.int64)
    for task in np.flatnonzero(graph.live):
        sets = [
            graph.set_resource[graph.set_start[place] : graph.set_start[place + 1]]
            for place in graph.places[task]
            if place != NOWHERE
        ]
        held = np.unique(np.concatenate(sets)) if sets else np.zeros(0, np.int32)
        loads[held] += graph.hold[task, graph.resource_kind[held]]
    return loads


@given(plans(repeating=True))
def test_tasks_and_edges_equal_the_twin(plan: Plan) -> None:
    layouts, options = [plan.layout[unit.name] for unit in plan.units], plan.options
    arguments = plan.graph, plan.cluster, options
    chain: tuple[tuple[Label, Label], ...] = ()
    try:
        problem = StepModel(*arguments, pipeline=layouts)
        chain = tuple(chained(problem.units, layouts, problem.bundles, options))
    except InputError:
        problem, layouts = StepModel(*arguments), [Layout(())] * len(plan.units)
    fetching = ahead(problem.units, layouts, problem.bundles, options)
    launches = host_launches(
        problem.units, layouts, problem.bundles, options, problem.operators, problem.rates.again
    )
    template, tasks, labels = skeleton(
        problem.units,
        problem.bundles,
        problem.places,
        len(problem.prices.kinds),
        options.micro_batches,
        chain,
        fetching if options.zero == 3 else None,
        options.sums,
        launches,
    )
    assert arrays(problem.template) == arrays(template)
    assert arrays(problem.tasks) == arrays(tasks)
    assert problem.labels == labels


@given(plans(repeating=True))
def test_bytes_over_time_equal_the_twin(plan: Plan) -> None:
    problem = ready(plan)
    timeline = full.simulate(problem.tasks)
    fast = list(curves(problem, problem.roles, timeline))
    slow = list(slow_curves(problem, problem.roles, timeline))
    assert list(map(arrays, fast)) == list(map(arrays, slow))


@given(plans(repeating=True))
def test_loads_equal_the_twin(plan: Plan) -> None:
    graph = ready(plan).tasks
    assert np.array_equal(loads(graph), slow_loads(graph))


def test_what_a_graph_keeps_does_not_depend_on_who_asked_first() -> None:
    """Types of units depend on what is allowed; pieces that are kept with the graph do not."""
    graph, cluster = transformer(layers=3), Cluster.named("h200", gpu=2)
    whole, odd = Layout.parse("replica"), units(graph)[0].name
    picky = Allowed(degree=lambda unit, split: 1 if unit.name == odd else None)
    for allowed in (ANYTHING, picky):
        problem = StepModel(graph, cluster, allowed=allowed)
        roles = problem.codes([whole] * len(problem.units))
        fast, slow = ShardBytes(problem, roles), SlowParts(problem, roles)
        assert (fast.kept, fast.forward, fast.backward) == (slow.kept, slow.forward, slow.backward)
