"""Plans that the joint search finds for tiny models. Enters: seconds for each search. Leaves: plans
for 2, 4 and 8 devices, some with too little memory for the fastest plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cost.backend import backend_named
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from support.drawn_plans import MODELS, Drawn
from support.executed import tiny
from support.machines import machine

MACHINES = ((2,), (2, 2), (2, 2, 2))
SHARE = 0.7
"""Of the memory that the fastest plan needs, where it is limited."""


def found_plans(
    seconds: Seconds, models: Sequence[str] = MODELS, machines: Sequence[tuple[int, ...]] = MACHINES
) -> Iterator[Drawn]:
    """For each model and machine the best plan; every other time with less memory than it needs."""
    for number, model in enumerate(models):
        for turn, sizes in enumerate(machines):
            yield found_plan(seconds, model, sizes, tight=(number + turn) % 2 == 1)


def found_plan(seconds: Seconds, model: str, sizes: tuple[int, ...], *, tight: bool) -> Drawn:
    """The best plan of a model on a machine, with less memory than it needs if that is tight."""
    graph, cluster = tiny(model, 16).graph, machine(*sizes)
    planned = _best(
        PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory), seconds
    )
    if tight:
        memory = Bytes(int(SHARE * planned.best.prediction.memory.total))
        planned = _best(PlanRequest(graph=graph, cluster=cluster, memory=memory), seconds)
    return Drawn(model, 16, "float64", planned.rewrites, planned.best.plan)


def _best(question: PlanRequest, seconds: Seconds) -> PlanResult:
    return best_plan(question, Budget(seconds=seconds), backend=backend_named("rings"))
