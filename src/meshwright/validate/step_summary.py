"""How far predicted training steps are from the given ones. Enters: rows, constants, the seed of
the half that was fitted. Leaves: `IterationComparison`s and a `StepSummary`.

Errors are |predicted / given - 1|. The rank correlation is Spearman's, ρ of the ranks (ties share
theirs), in each group of GROUP rows or more, of two kinds: one model, machine and global batch; and
one model and machine. Whether the given times were measured or summed, `straightness` tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import mean, median

import msgspec
import numpy as np

from meshwright.base.units import Seconds
from meshwright.validate.step_constants import Shipped, StepConstants
from meshwright.validate.step_fit import Floats, halves
from meshwright.validate.step_rows import (
    IterationRow,
    Straightness,
    embedded_step_rows,
    straightness,
)
from meshwright.validate.steps import StepPredictor

GROUP = 5
"""The least number of rows whose order is judged."""


class IterationComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A row beside its prediction."""

    row: IterationRow
    predicted_s: Seconds
    fitted: bool
    """Whether the constants were fitted on this row."""

    @property
    def error(self) -> float:
        """Predicted against given: +0.1 is ten per cent too slow."""
        return self.predicted_s / self.row.reference_s - 1


class MeanError(msgspec.Struct, frozen=True, kw_only=True):
    """Mean absolute errors and how many rows they are means of; None without any."""

    overall: float | None
    inside_node: float | None
    across_nodes: float | None
    rows_inside_node: int
    rows_across_nodes: int


class RankCorrelation(msgspec.Struct, frozen=True, kw_only=True):
    """Spearman's correlations of some groups; None without any."""

    groups: int
    median: float | None
    mean: float | None
    least: float | None


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All that `validate steps` says in figures."""

    mean_error: MeanError
    fitted: MeanError
    held_out: MeanError
    """Rows that the constants were not fitted on."""
    rank_one_batch: RankCorrelation
    """Among rows of one model, machine and global batch."""
    rank_all_batches: RankCorrelation
    """Among rows of one model and machine."""
    inside_node: Straightness
    across_nodes: Straightness
    seed: int
    constants: StepConstants


def compare_iterations(rows: Sequence[IterationRow], shipped: Shipped) -> list[IterationComparison]:
    """Every row beside its prediction with constants that ship."""
    fitted, _ = halves(embedded_step_rows(), shipped.seed)
    known, predictor = frozenset(fitted), StepPredictor(shipped.constants)
    return [
        IterationComparison(row=row, predicted_s=predictor.seconds(row), fitted=row in known)
        for row in rows
    ]


def summarize_steps(comparisons: Sequence[IterationComparison], shipped: Shipped) -> StepSummary:
    """The figures of some comparisons."""
    rows = [it.row for it in comparisons]
    return StepSummary(
        mean_error=_mean_error(comparisons),
        fitted=_mean_error([it for it in comparisons if it.fitted]),
        held_out=_mean_error([it for it in comparisons if not it.fitted]),
        rank_one_batch=_ranks(comparisons, lambda row: (*row.machine, row.global_batch)),
        rank_all_batches=_ranks(comparisons, lambda row: row.machine),
        inside_node=straightness([row for row in rows if not row.across_nodes]),
        across_nodes=straightness([row for row in rows if row.across_nodes]),
        seed=shipped.seed,
        constants=shipped.constants,
    )


def _mean_error(comparisons: Sequence[IterationComparison]) -> MeanError:
    inside = [abs(it.error) for it in comparisons if not it.row.across_nodes]
    across = [abs(it.error) for it in comparisons if it.row.across_nodes]
    return MeanError(
        overall=_mean((*inside, *across)),
        inside_node=_mean(inside),
        across_nodes=_mean(across),
        rows_inside_node=len(inside),
        rows_across_nodes=len(across),
    )


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _ranks(
    comparisons: Iterable[IterationComparison], key: Callable[[IterationRow], Hashable]
) -> RankCorrelation:
    groups: dict[Hashable, list[IterationComparison]] = defaultdict(list)
    for it in comparisons:
        groups[key(it.row)].append(it)
    found = [
        spearman([it.row.reference_s for it in own], [it.predicted_s for it in own])
        for own in groups.values()
        if len(own) >= GROUP
    ]
    if not found:
        return RankCorrelation(groups=0, median=None, mean=None, least=None)
    return RankCorrelation(
        groups=len(found), median=median(found), mean=mean(found), least=min(found)
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks; 0 where all values of a sequence are equal.

    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    first, second = _ranked(one), _ranked(other)
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return round(float(first @ second) / size, 12) if size else 0.0


def _ranked(values: Sequence[float]) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.asarray(values, float)
    below = (array[None, :] < array[:, None]).sum(axis=1)
    equal = (array[None, :] == array[:, None]).sum(axis=1)
    ranks: Floats = below + (equal - 1) / 2
    return ranks
