"""The simulator of a plan. Enters: a `Plan`. Leaves: a `Simulation`: tasks, timeline, prediction.

The plan is checked by itself; here it becomes a task graph and runs through an engine. Only the
factors along which some unit sits at one coordinate tell devices apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshwright.base.quantities import Bytes, Seconds
from meshwright.base.sheet import Sheet, printed
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import backend_named
from meshwright.cost.operator import OperatorPricer
from meshwright.plan.plan import Plan, Prediction
from meshwright.simulate import full
from meshwright.simulate.collective_table import COMPUTE, NANO, CollectivePrices
from meshwright.simulate.memory.memory_timeline import fullest
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import TaskGraph, Timeline, loads
from meshwright.simulate.throughput import throughput


@printed
class Simulation(NamedTuple):
    """A plan, its tasks laid out, and when everything happens."""

    plan: Plan
    problem: StepModel
    timeline: Timeline
    prediction: Prediction

    def sheet(self) -> Sheet:
        """What is predicted of the plan."""
        sheet, done = self.prediction.sheet(), throughput(self.plan, self.prediction)
        unit = "tokens/s" if done.tokens_per_s else "samples/s"
        rates = [(unit, f"{done.tokens_per_s or done.samples_per_s:,.4g}")]
        if done.mfu is not None:
            rates.append(("MFU", f"{done.mfu:.1%}"))
        title = f"plan '{self.plan.origin}' of {self.plan.graph.name} on {self.plan.cluster.name}"
        return sheet._replace(title=f"{title}, {sheet.title}", facts=(*sheet.facts, *rates))


def prices_of(plan: Plan, *, programs: bool = True) -> CollectivePrices:
    """What collectives cost on a plan's machine by the library that the plan was made for."""
    pricer = Pricer(plan.cluster, backend_named(plan.backend), algorithm="best")
    return CollectivePrices(pricer, programs=programs)


def simulate(
    plan: Plan,
    prices: CollectivePrices | None = None,
    operators: OperatorPricer | None = None,
    engine: Callable[[TaskGraph], Timeline] = full.simulate,
) -> Simulation:
    """What a plan costs; with nothing else said, by the library that it was made for.

    >>> from meshwright import Cluster, simulate_plan
    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.baselines.data import data_parallel
    >>> graph = parse_graph('''graph tiny
    ... input x: float32[n=8, k=8]
    ... parameter w: float32[o=8, k=8]
    ... operator y: y: float32[n=8, o=8] = linear(x, w)
    ... output y''')
    >>> plan = data_parallel(graph, Cluster.named("laptop"))
    >>> simulate_plan(plan).prediction.missing
    0
    """
    layouts = [plan.layout[unit.name] for unit in plan.units]
    sitting = [layout.coordinates() for layout in set(layouts)]
    apart = [
        any(coordinates[number] is not None for coordinates in sitting)
        for number in range(len(plan.factors))
    ]
    problem = StepModel(
        plan.graph,
        plan.cluster,
        plan.options,
        apart=apart,
        pipeline=layouts,
        prices=prices or prices_of(plan),
        operators=operators,
    )
    roles = problem.codes(layouts)
    problem.lay(roles)
    timeline = engine(problem.tasks)
    return Simulation(plan, problem, timeline, _prediction(problem, timeline))


def _prediction(problem: StepModel, timeline: Timeline) -> Prediction:
    tasks = problem.tasks
    computing = loads(tasks._replace(live=tasks.live & ~tasks.joint))
    memory = fullest(problem, problem.roles, timeline)
    return Prediction(
        step=Seconds(timeline.makespan / NANO),
        compute=Seconds(int(computing[problem.places.kind == COMPUTE].max()) / NANO),
        moved=Bytes(round(problem.moved)),
        memory=memory,
        missing=Bytes(max(0, memory.total - problem.cluster.device.memory)),
    )
