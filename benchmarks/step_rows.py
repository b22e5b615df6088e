"""Rows of `training_steps` and what they say together. Enters: predicted and measured seconds of
plans. Leaves: a table, and a `Judgement`. Measures and predicts nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec

APART = 0.1
"""Pairs whose measured times differ by more are to be ordered."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One plan on one cluster."""

    cluster: str
    model: str
    plan: str
    predicted: float
    measured: float
    """The median of all steps."""
    steps: tuple[float, ...]
    load: float
    """The machine's load average when it was measured."""

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


class Judgement(NamedTuple):
    """What all rows say together."""

    pairs: int
    """Of one model on one cluster, that differ by more than APART."""
    kept: int
    """Of those, whose order was predicted."""
    error: float
    """The median."""
    promised: int
    """Models on clusters whose found plan was predicted to be faster than data parallelism."""
    faster: int
    """Of those, where it was."""


def judged(rows: Sequence[Row]) -> Judgement:
    """Order, error, and whether promises are kept."""
    pairs = [
        (one, other)
        for one, other in combinations(rows, 2)
        if (one.cluster, one.model) == (other.cluster, other.model)
        and max(one.measured, other.measured) > (1 + APART) * min(one.measured, other.measured)
    ]
    kept = [
        (one.predicted < other.predicted) == (one.measured < other.measured) for one, other in pairs
    ]
    plain = {(row.cluster, row.model): row for row in rows if row.plan == "data parallel"}
    promised = [
        (row, plain[row.cluster, row.model])
        for row in rows
        if row.plan == "found" and row.predicted < plain[row.cluster, row.model].predicted
    ]
    return Judgement(
        pairs=len(pairs),
        kept=sum(kept),
        error=statistics.median(abs(row.ratio - 1) for row in rows),
        promised=len(promised),
        faster=sum(row.measured < other.measured for row, other in promised),
    )


def told(rows: Sequence[Row]) -> None:
    print("cluster | model | plan | predicted ms | measured ms | predicted / measured | load")
    for row in rows:
        print(
            f"{row.cluster} | {row.model} | {row.plan} | {1e3 * row.predicted:.0f} | "
            f"{1e3 * row.measured:.0f} | {row.ratio:.2f} | {row.load:.1f}"
        )
    judgement = judged(rows)
    print(
        f"order kept in {judgement.kept} of {judgement.pairs} pairs that differ by more than "
        f"{APART:.0%}; "
        f"median error {judgement.error:.0%}; found plans faster than data parallelism in "
        f"{judgement.faster} of {judgement.promised} cases where it was predicted"
    )
