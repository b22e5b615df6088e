"""`explain_plan`: a plan explained from Python. Enters: a `Plan`. Leaves: an `Explained`, which
prints itself; what is planned anew for it starts, where nothing else fits, from what people train
with (`recipes`).
"""

from __future__ import annotations

from functools import partial

from meshwright.base.quantities import Bytes
from meshwright.configs.find_plan import fastest_recipe
from meshwright.cost.backend import backend_named
from meshwright.explain.explanation import Explained, Progress, explained
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.resolve import memory_limit


def explain_plan(
    plan: Plan,
    *,
    memory: str | Bytes | None = None,
    seconds: float = 20.0,
    budget: str | float | Budget | None = None,
) -> Explained:
    """Where the time of a plan goes, what would help, and for every decision what the best other
    choice would have cost; dearest first. A budget is that of each search: for the largest
    decisions with the runner-up fixed, and for other batches and machines; None: nothing is
    searched.

    >>> from meshwright import Cluster, capture_model, compare, explain_plan, Budget
    >>> graph, laptop = capture_model("zoo:lenet/tiny", batch=8), Cluster.named("laptop")
    >>> plan = compare(graph, laptop, Budget.parse("10")).searched.plan
    >>> "zero" in [decision.subject for decision in explain_plan(plan).decisions]
    True
    """
    return explained_beside_recipes(
        plan,
        seconds=seconds,
        memory=memory_limit(memory, plan.cluster),
        budget=None if budget is None else Budget.of(budget),
    )


def explained_beside_recipes(
    plan: Plan,
    *,
    seconds: float,
    memory: Bytes,
    budget: Budget | None,
    progress: Progress = lambda share, doing: None,
) -> Explained:
    """What there is to say of a plan (`explained`)."""
    if budget is None:
        return explained(plan, seconds=seconds, memory=memory, progress=progress)
    known = partial(fastest_recipe, budget, backend_named(plan.backend))
    return explained(
        plan, seconds=seconds, memory=memory, budget=budget, known=known, progress=progress
    )
