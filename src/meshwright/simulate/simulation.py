"""A plan simulated. Enters: a `Plan`. Leaves: a `Simulation`: tasks, timeline, prediction.

The plan is checked by itself; here it becomes a task graph and runs through the full engine. Only
the factors along which some unit sits at one coordinate tell devices apart.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.foundation.units import Bytes, Seconds
from meshwright.plan.model import Plan, Prediction
from meshwright.price.operator import OperatorPricer
from meshwright.simulate import full
from meshwright.simulate.bundles import bundles
from meshwright.simulate.held import fullest
from meshwright.simulate.prices import COMPUTE, NANO, Prices
from meshwright.simulate.problem import Problem
from meshwright.simulate.stages import chained
from meshwright.simulate.tasks import Timeline


class Simulation(NamedTuple):
    """A plan, its tasks laid out, and when everything happens."""

    plan: Plan
    problem: Problem
    timeline: Timeline
    prediction: Prediction


def simulate(
    plan: Plan, prices: Prices | None = None, operators: OperatorPricer | None = None
) -> Simulation:
    """What a plan costs."""
    layouts = [plan.layout[unit.name] for unit in plan.units]
    apart = [
        any(layout.coordinates()[number] is not None for layout in layouts)
        for number in range(len(plan.factors))
    ]
    problem = Problem(
        plan.graph,
        plan.cluster,
        plan.options,
        apart=apart,
        chained=chained(plan.units, layouts, bundles(plan.graph, plan.units), plan.options),
        prices=prices,
        operators=operators,
    )
    roles = problem.codes(layouts)
    problem.lay(roles)
    timeline = full.simulate(problem.tasks)
    return Simulation(plan, problem, timeline, _prediction(problem, timeline))


def _prediction(problem: Problem, timeline: Timeline) -> Prediction:
    busy: dict[int, int] = {}
    tasks, places = problem.tasks, problem.places
    for task in timeline.order.tolist():
        place = int(tasks.places[task, 0])
        if tasks.hold[task, COMPUTE]:
            for resource in places.set_resource[
                places.set_start[place] : places.set_start[place + 1]
            ]:
                if places.kind[resource] == COMPUTE:
                    busy[resource] = busy.get(resource, 0) + int(tasks.duration[task])
    memory = fullest(problem, problem.roles, timeline)
    return Prediction(
        step=Seconds(timeline.makespan / NANO),
        compute=Seconds(max(busy.values(), default=0) / NANO),
        moved=Bytes(round(problem.moved)),
        memory=memory,
        missing=Bytes(max(0, memory.total - problem.cluster.device.memory)),
    )
