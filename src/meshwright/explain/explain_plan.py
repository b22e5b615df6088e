"""A plan explained from Python. Enters: a `Plan`. Leaves: its decisions, with the runners-up."""

from __future__ import annotations

import time

from meshwright.base.units import Bytes
from meshwright.cost.tables import pricer_of
from meshwright.explain.decisions import Decision, explain
from meshwright.plan.model import Plan
from meshwright.search.find import memory_limit
from meshwright.simulate.simulation import prices_of


def explain_plan(
    plan: Plan, *, memory: str | Bytes | None = None, seconds: float = 20.0
) -> tuple[Decision, ...]:
    """For every decision of a plan, what the best other choice would have cost; dearest first.

    >>> from meshwright import Cluster, capture_model, compare, explain_plan, Budget
    >>> graph, laptop = capture_model("zoo:lenet/tiny", batch=8), Cluster.named("laptop")
    >>> plan = compare(graph, laptop, Budget.parse("10")).searched.plan
    >>> "zero" in [decision.subject for decision in explain_plan(plan)]
    True
    """
    return explain(
        plan,
        prices=prices_of(plan),
        operators=pricer_of(plan.cluster.device),
        memory=memory_limit(memory, plan.cluster),
        deadline=time.monotonic() + seconds,
    )
