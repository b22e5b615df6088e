"""Cluster-size search: the best plan on each smaller machine, by device-hours. Enters: a question,
a number of devices, a budget. Leaves: a `PlanResult` for each machine, the one with the fewest
device-hours first.
"""

from __future__ import annotations

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cost.backend import NCCL, Backend
from meshwright.search.budget import Budget
from meshwright.search.joint.phases import Progress
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest, PlanResult


def best_of_devices(
    question: PlanRequest,
    devices: int,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    programs: bool = True,
    seed: int = 0,
    cores: int = 1,
    progress: Progress = lambda _: None,
) -> tuple[PlanResult, ...]:
    """The best plans on smaller machines of the kind, the one with the fewest device-hours first.

    Machines have fewer of the outermost level, as long as they have at most so many devices.
    """
    outer = question.cluster.levels[0]
    each = question.cluster.devices // outer.cardinality
    sizes = [n for n in range(1, outer.cardinality + 1) if n & (n - 1) == 0 and n * each <= devices]
    if not sizes:
        raise InputError(
            f"{devices} devices are fewer than the {each} of one {outer.name}",
            f"give {each} or more",
        )
    share = msgspec.structs.replace(
        budget, seconds=None if budget.seconds is None else Seconds(budget.seconds / len(sizes))
    )
    plans = []
    for size in sizes:
        cluster = question.cluster.resized({outer.name: size})
        smaller = msgspec.structs.replace(question, cluster=cluster)
        planned = best_plan(
            smaller,
            share,
            backend=backend,
            programs=programs,
            seed=seed,
            cores=cores,
            progress=progress,
        )
        plans.append(planned)
        if planned.stopped == "interrupted":
            break
    return tuple(sorted(plans, key=_device_seconds))


def _device_seconds(planned: PlanResult) -> tuple[bool, float]:
    fits = planned.best.fits(planned.question.memory)
    return not fits, planned.best.prediction.step * planned.question.cluster.devices
