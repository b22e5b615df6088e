"""A search that is none: everything runs on every device. Stands in for the joint search."""

from __future__ import annotations

from types import ModuleType

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.sharding.layout import REPLICA, Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate.simulation import simulate


def best_plan(question: PlanRequest, budget: Budget, **_: object) -> PlanResult:
    """Every device does everything; a graph named "refused" is refused."""
    if question.graph.name == "refused":
        raise InputError("the graph is refused", "give another")
    layout = Layout((REPLICA,) * len(factors(question.cluster)))
    layouts = [layout for _ in units(question.graph)]
    plan = Plan.of("fake", question.graph, question.cluster, layouts, question.training)
    prediction = simulate(plan).prediction
    return PlanResult(
        question=question,
        best=Candidate(plan, prediction),
        baselines=(),
        refused=(),
        front=(),
        bound=Seconds(prediction.step / 2),
        graphs=3,
        rewrites=("fuse at y",),
        simulated=1,
        history=(),
        seconds=0.5,
        stopped="complete",
    )


def module() -> ModuleType:
    """The module in which sweeps look for a search."""
    planner = ModuleType("meshwright.search.joint.planner")
    planner.best_plan = best_plan  # type: ignore[attr-defined]
    return planner
