"""Activation checkpointing of k layers, chosen against memory. Enters: trials so far. Leaves: more.

A plan that is fast and too large fits if enough of its layers run again. With M(k) the peak memory
and T(k) the step if k of n layers do, both nearly linear in k, the least k that fits is

    k = n (M(0) - limit) / (M(0) - M(n)), rounded up                                    `_crossing`

and is corrected by simulation: between a k that fits and one that does not the next is where the
line through both crosses the limit (regula falsi). Plans that T(k), told by the line, would not
make the best are left out after one simulation.                                        `spared`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from meshwright.base.units import Bytes
from meshwright.graph.layers import layer_count
from meshwright.plan.options import Options
from meshwright.search.joint.candidates import CandidateEntry
from meshwright.search.joint.constraints import RECOMPUTE, option
from meshwright.search.joint.evaluate import Evaluator
from meshwright.search.joint.question import PlanRequest

CORRECTIONS = 5
"""Simulations between the ends, at most."""


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
        spared(trials, entry, limit, enough)


def _worthwhile(trials: Evaluator, limit: Bytes) -> Iterator[CandidateEntry]:
    """Plans without recomputation that do not fit, the fastest of each roles and micro-batches."""
    known: set[object] = set()
    over = [own for own in trials.kept.ranked() if not own.candidate.fits(limit)]
    for entry in sorted(over, key=lambda own: own.step):
        options = entry.candidate.plan.options
        key = id(entry.bench), entry.roles.tobytes(), options.micro_batches, options.sharded
        if not options.recompute and key not in known:
            known.add(key)
            yield entry


def spared(
    trials: Evaluator, entry: CandidateEntry, limit: Bytes, enough: Callable[[], bool]
) -> None:
    """Simulate a plan with the fewest layers that must run again for it to fit."""
    options, total = entry.candidate.plan.options, layer_count(entry.bench.graph)
    every = trials.relaid(entry, _again(options, 0), entry.roles) if total > 1 else None
    if every is None or not every.candidate.fits(limit):
        return
    low, high = (0, _held(entry)), (total, _held(every))
    for _ in range(CORRECTIONS):
        k = _crossing(low, high, limit)
        longer = every.step - entry.step
        best = trials.kept.best
        hopeless = best is not None and entry.step + longer * k / total > best.step
        if enough() or hopeless or high[0] - low[0] <= 1:
            return
        found = trials.relaid(entry, _again(options, k), entry.roles)
        if found is None:
            return
        if found.candidate.fits(limit):
            high = k, _held(found)
        else:
            low = k, _held(found)


def _again(options: Options, layers: int) -> Options:
    return replace(options, recompute=True, recompute_layers=layers)


def _held(entry: CandidateEntry) -> int:
    return int(entry.candidate.prediction.memory.total)


def _crossing(low: tuple[int, int], high: tuple[int, int], limit: int) -> int:
    """The least number of layers between both at which the line through them should fit.

    >>> _crossing((0, 90), (10, 40), 80), _crossing((2, 81), (10, 40), 80)
    (2, 3)
    """
    (fewer, more_bytes), (more, fewer_bytes) = low, high
    share = (more_bytes - limit) / max(1, more_bytes - fewer_bytes)
    return max(fewer + 1, min(more - 1, fewer + math.ceil(share * (more - fewer))))
