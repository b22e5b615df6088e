"""Activation checkpointing of the fewest layers that fit in memory, by regula falsi. Enters: trials
so far. Leaves: more.

A plan that is fast and too large fits if enough of its layers run again. With M(k) the peak memory
and T(k) the step if k of n layers do, T nearly linear in k, and M the largest of some moments that
are each (so it falls and is convex: where the update takes most, k changes nothing), the least k
that fits is

    k = n (M(0) - limit) / (M(0) - M(n)), rounded up                                    `_crossing`

and is corrected by simulation: between a k that fits and one that does not the next is where the
line through both crosses the limit (regula falsi), no less than the least that fits; or, once two k
do not fit, where the line through these does, no more than it. If the former takes off but one
layer after the other, the middle is tried. Plans that T(k), told by the line, would not make the
best are left out after one simulation.          `recompute_fewest_layers`, `_between`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from meshwright.base.quantities import Bytes
from meshwright.graph.layers import layer_count
from meshwright.search.joint.request.constraints import RECOMPUTE, option
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.search.joint.trials.evaluate import Evaluator

CORRECTIONS = 6
"""Simulations between the ends, at most."""

Point = tuple[int, int]
"""How many layers run again, and the bytes that are held then."""


def checkpointed(trials: Evaluator, question: PlanRequest, enough: Callable[[], bool]) -> None:
    """Let layers of plans that are fast and too large run again, the fastest plan first; nothing if
    no layer may.
    """
    limit = question.memory
    if option(question.constraints, RECOMPUTE) == 0:
        return
    for entry in _worthwhile(trials, limit):
        best = trials.kept.best
        if enough() or (
            best is not None and best.candidate.fits(limit) and entry.step >= best.step
        ):
            return
        recompute_fewest_layers(trials, entry, limit, enough)


def _worthwhile(trials: Evaluator, limit: Bytes) -> Iterator[CandidateEntry]:
    """Plans without recomputation that do not fit, the fastest of each roles and micro-batches."""
    known: set[object] = set()
    over = [other for other in trials.kept.ranked() if not other.candidate.fits(limit)]
    for entry in sorted(over, key=lambda other: other.step):
        options = entry.candidate.plan.options
        key = id(entry.context), entry.roles.tobytes(), options.micro_batches, options.sharded
        if not options.recompute and key not in known:
            known.add(key)
            yield entry


def recompute_fewest_layers(
    trials: Evaluator, entry: CandidateEntry, limit: Bytes, enough: Callable[[], bool]
) -> None:
    """Simulate a plan with the fewest layers that must run again for it to fit."""
    total = layer_count(entry.context.graph)
    every = _rerun(trials, entry, 0) if total > 1 else None
    if every is None or not every.candidate.fits(limit):
        return
    over, fits = [(0, _held(entry))], [(total, _held(every))]
    for _ in range(CORRECTIONS):
        k = _between(over, fits, limit)
        longer = every.step - entry.step
        best = trials.kept.best
        hopeless = best is not None and entry.step + longer * k / total > best.step
        if enough() or hopeless or fits[-1][0] - over[-1][0] <= 1:
            return
        tried = _rerun(trials, entry, k)
        if tried is None:
            return
        (fits if tried.candidate.fits(limit) else over).append((k, _held(tried)))


def _rerun(trials: Evaluator, entry: CandidateEntry, layers: int) -> CandidateEntry | None:
    """The plan with so many layers that run again, simulated if it has not been; None if it breaks
    a constraint.
    """
    options = replace(entry.candidate.plan.options, recompute=True, recompute_layers=layers)
    known = trials.kept.known(entry.context, options, entry.roles)
    return known or trials.relaid(entry, options, entry.roles)


def _held(entry: CandidateEntry) -> int:
    return int(entry.candidate.prediction.memory.total)


def _between(over: Sequence[Point], fits: Sequence[Point], limit: int) -> int:
    """The number of layers to try between the last that do not fit and the last that do.

    >>> _between([(0, 90)], [(10, 40)], 80), _between([(0, 90), (2, 81)], [(10, 40)], 80)
    (2, 3)
    >>> _between([(0, 90)], [(20, 40), (16, 40), (15, 40)], 50)
    7
    """
    fewer, more = over[-1][0], fits[-1][0]
    if len(over) > 1:
        k = _crossing(over[-2], over[-1], limit)
    elif len(fits) > 2:
        k = (fewer + more) // 2
    else:
        k = _crossing(over[-1], fits[-1], limit)
    return max(fewer + 1, min(more - 1, k))


def _crossing(one: Point, other: Point, limit: int) -> int:
    """The least number of layers at which the line through two points is within the limit.

    >>> _crossing((0, 90), (10, 40), 80), _crossing((2, 81), (10, 40), 80)
    (2, 3)
    """
    (fewer, more_bytes), (more, fewer_bytes) = one, other
    share = (more_bytes - limit) / max(1, more_bytes - fewer_bytes)
    return fewer + math.ceil(share * (more - fewer))
