"""Straggler and leave-one-out analysis of a plan over islands. Enters: an `IslandPlan` and its
prediction. Leaves: the straggler, if there is one, and what leaving each island out would give.

Without an island the others share the batch anew, in the best whole shares, with their plans as
they are: what is said is what leaving out alone does, not what another search might find.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.graph.batch import with_samples
from meshwright.plan.island_plan import IslandPart, IslandPlan, IslandPrediction
from meshwright.plan.plan import Prediction
from meshwright.search.islands.shares import balanced_shares
from meshwright.simulate.island_step import PartFigures, compose_prediction, simulated_part

BEHIND = 0.9
"""A device that does less than this share of what the fastest does is a straggler."""


class Straggler(NamedTuple):
    """An island whose devices are the slowest."""

    island: str
    fastest: str
    share: float
    """Of what a device of the fastest island does."""
    samples: float
    """That a device has."""
    most: float
    """That a device of the fastest island has."""


class LeftOut(NamedTuple):
    """A plan without one of its islands."""

    island: str
    step: Seconds | None
    change: float
    """Of the step, as a share."""
    why: str
    """What is left, or why nothing is."""


def straggler(plan: IslandPlan, prediction: IslandPrediction) -> Straggler | None:
    """The slowest island for each device, if it is clearly behind; of plans with one stage."""
    if plan.stages > 1 or len(plan.parts) < 2:
        return None
    each = [
        part.share / predicted.step / part.plan.cluster.devices
        for part, predicted in zip(plan.parts, prediction.parts, strict=True)
    ]
    slow, fast = each.index(min(each)), each.index(max(each))
    if each[slow] >= BEHIND * each[fast]:
        return None
    first, last = plan.parts[fast], plan.parts[slow]
    return Straggler(
        last.name,
        first.name,
        each[slow] / each[fast],
        last.share / last.plan.cluster.devices,
        first.share / first.plan.cluster.devices,
    )


def left_out(plan: IslandPlan, prediction: IslandPrediction) -> tuple[LeftOut, ...]:
    """For each island that has a part what the others do without it."""
    if plan.stages > 1 or len(plan.parts) < 2:
        return ()
    return tuple(_without(plan, prediction, part) for part in plan.parts)


def _without(plan: IslandPlan, prediction: IslandPrediction, gone: IslandPart) -> LeftOut:
    parts = [part for part in plan.parts if part is not gone]
    known: dict[tuple[int, int], tuple[IslandPart, Prediction] | None] = {}

    def resized(number: int, share: int) -> tuple[IslandPart, Prediction] | None:
        if (number, share) not in known:
            try:
                before = parts[number].plan
                changed = before.changed(graph=with_samples(before.graph, share))
                predicted = simulated_part(changed)
            except InputError:
                known[number, share] = None
            else:
                part = IslandPart(islands=parts[number].islands, plan=changed, share=share)
                known[number, share] = None if predicted.missing else (part, predicted)
        return known[number, share]

    def timing(number: int, share: int) -> float:
        outcome = resized(number, share)
        return math.inf if outcome is None else outcome[1].step

    if len(parts) == 1:
        shares: tuple[int, ...] = (plan.batch,)
    else:
        speeds = [part.share for part in parts]
        _, shares = balanced_shares(timing, speeds, plan.batch, lambda: len(known) > 24)
    chosen = [resized(number, share) for number, share in enumerate(shares)]
    kept = [pair for pair in chosen if pair is not None]
    if not kept or len(kept) < len(parts):
        return LeftOut(gone.name, None, 0.0, "the others cannot take its samples as they are")
    left = IslandPlan(
        origin=f"without {gone.name}",
        cluster=plan.cluster,
        batch=plan.batch,
        parts=tuple(part for part, _ in kept),
    )
    new_prediction = compose_prediction(
        left, [PartFigures(prediction=predicted, pace=predicted.step) for _, predicted in kept]
    )
    words = ", ".join(f"{part.name} {part.share} of {plan.batch}" for part in left.parts)
    return LeftOut(gone.name, new_prediction.step, new_prediction.step / prediction.step - 1, words)
