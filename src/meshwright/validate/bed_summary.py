"""Testbed accuracy of predicted programs: top-k accuracy, regret, rank correlation. Enters:
timings, each a program's prediction beside its measurement, by case. Leaves: figures. Nothing here
predicts.

A case is *telling* if it has more than ten programs: with three, the first ten are always right.
The *place* of a case's fastest program is where predictions, in ascending order, put it; top-k
accuracy is the share of telling cases in which that is among the first k. The *regret* is what the
program predicted to be fastest takes longer than the fastest, as a share of the fastest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import correlation, fmean, median
from typing import NamedTuple

import msgspec

from meshwright.base.quantities import Seconds
from meshwright.collectives.dsl import ALL_REDUCE, Program
from meshwright.collectives.predict import PricedProgram
from meshwright.validate.bed_rows import Case, Key, Record, Result
from meshwright.validate.p2_accuracy import Errors, Gains, errors, gains

TELLING = 10
TOPS = (1, 2, 3, 5, 10)


class Timing(NamedTuple):
    """A program's predicted time and the median of those measured."""

    program: Program
    predicted_s: Seconds
    measured_s: Seconds
    spread: float
    """Slowest over fastest repetition, less one."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How well predictions choose, over telling cases."""

    cases: int
    top: dict[int, float]
    """Share of cases whose fastest program is among the so many predicted to be fastest."""
    correlation: float
    """Of ranks, predicted and measured: the median case."""
    lowest_correlation: float
    regret: float
    """The median case."""
    mean_regret: float
    largest_regret: float


class BedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a campaign."""

    errors: dict[str, Errors]
    """By network, for telling cases; for all others; for all."""
    spread: float
    """The median program's."""
    measured: Gains
    predicted: Gains
    programs_ahead: float
    """Share of programs that were measured to be faster than AllReduce."""
    accuracy: Accuracy


def timings(
    records: Iterable[Record], predictions: Mapping[Key, Sequence[PricedProgram]]
) -> dict[Key, list[Timing]]:
    """What was measured of each case, in the order of its predictions, given by case.

    Of what was measured twice, the calmer time counts.
    """
    results: dict[Key, dict[str, Result]] = defaultdict(dict)
    for record in records:
        if isinstance(record, Result):
            known = results[record.case].get(record.program)
            if known is None or median(record.load) < median(known.load):
                results[record.case][record.program] = record
    return {
        case: [
            _timing(priced, programs[str(priced.program)])
            for priced in predictions[case]
            if str(priced.program) in programs
        ]
        for case, programs in results.items()
    }


def _timing(priced: PricedProgram, result: Result) -> Timing:
    return Timing(
        priced.program,
        priced.seconds,
        Seconds(median(result.seconds)),
        max(result.seconds) / min(result.seconds) - 1,
    )


def summarize_bed(cases: Iterable[Case], timed: Mapping[Key, list[Timing]]) -> BedSummary:
    """The figures of the cases that were measured."""
    known = {case: timed[case.key] for case in cases if case.key in timed}
    telling = {
        case: case_timings for case, case_timings in known.items() if len(case_timings) > TELLING
    }
    every = [timing for case_timings in known.values() for timing in case_timings]
    ahead = [
        it.measured_s < _all_reduce(case_timings).measured_s
        for case_timings in known.values()
        for it in case_timings
    ]
    return BedSummary(
        errors=_errors(known, telling),
        spread=median(it.spread for it in every),
        measured=_gains(known, lambda it: it.measured_s),
        predicted=_gains(known, lambda it: it.predicted_s),
        programs_ahead=sum(ahead) / len(ahead),
        accuracy=_accuracy(list(telling.values())),
    )


def _errors(
    known: Mapping[Case, list[Timing]], telling: Mapping[Case, list[Timing]]
) -> dict[str, Errors]:
    groups: dict[str, list[Timing]] = defaultdict(list)
    for case in sorted(known, key=lambda case: case not in telling):
        groups[case.network if case in telling else "three programs"] += known[case]
    groups["all"] = [timing for case_timings in known.values() for timing in case_timings]
    return {
        name: errors((it.predicted_s, it.measured_s) for it in group)
        for name, group in groups.items()
    }


def _all_reduce(case_timings: Iterable[Timing]) -> Timing:
    return next(it for it in case_timings if it.program == ALL_REDUCE)


def _gains(known: Mapping[Case, list[Timing]], seconds: Callable[[Timing], float]) -> Gains:
    same_axes: dict[object, list[float]] = defaultdict(list)
    for case, case_timings in known.items():
        same_axes[case.configuration].append(seconds(_all_reduce(case_timings)))
    speedups = [seconds(_all_reduce(timed)) / min(map(seconds, timed)) for timed in known.values()]
    return gains(speedups, [max(times) / min(times) for times in same_axes.values()])


def _accuracy(telling: Sequence[Sequence[Timing]]) -> Accuracy:
    places = [_place(case_timings) for case_timings in telling]
    regrets = [
        case_timings[0].measured_s / min(it.measured_s for it in case_timings) - 1
        for case_timings in telling
    ]
    correlations = [rank_correlation(case_timings) for case_timings in telling]
    return Accuracy(
        cases=len(telling),
        top={k: sum(place <= k for place in places) / len(places) for k in TOPS},
        correlation=median(correlations),
        lowest_correlation=min(correlations),
        regret=median(regrets),
        mean_regret=fmean(regrets),
        largest_regret=max(regrets),
    )


def _place(case_timings: Sequence[Timing]) -> int:
    """Where predictions put the fastest, from 1; timings are in the order of predictions."""
    return min(range(len(case_timings)), key=lambda i: case_timings[i].measured_s) + 1


def rank_correlation(case_timings: Sequence[Timing]) -> float:
    """Spearman's: 1 if predictions keep the measured order; equal times share their ranks.

    >>> def timing(predicted, measured):
    ...     return Timing(ALL_REDUCE, predicted, measured, 0.0)
    >>> rank_correlation([timing(1, 10), timing(2, 20), timing(3, 40)])
    1.0
    """
    sides = ([it.predicted_s for it in case_timings], [it.measured_s for it in case_timings])
    return round(correlation(*map(_ranks, sides)), 12)


def _ranks(values: Sequence[float]) -> list[float]:
    ascending = sorted(values)
    return [bisect_left(ascending, it) + bisect_right(ascending, it) for it in values]
