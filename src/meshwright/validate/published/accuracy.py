"""Accuracy of published-step predictions: errors, pairwise order, memory fit. Enters: judged rows.
Leaves: a `PublishedSummary`.

An error is |predicted / measured - 1|; the signed median says to which side. Order is judged among
rows of one source that differ in degrees only (tensor, pipeline, virtual, context, expert, data,
ZeRO, micro-batch): of every two whose measured times differ by more than APART, whether the faster
one is predicted to be faster. Whether a row fits is known where its memory was measured or it ran
out of memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from statistics import median

import msgspec
import numpy as np

from meshwright.validate.published.predicted_rows import JudgedRow
from meshwright.validate.published.rows import PublishedRow

ALL = "all"

APART = 0.10
"""By how much measured times must differ for their order to be judged."""


class PublishedErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of some rows."""

    rows: int
    median: float
    ninetieth: float
    """The 90th percentile."""
    signed: float
    """The median of predicted / measured - 1."""


class PublishedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told about published rows."""

    rows: int
    predicted: int
    """Rows with a prediction and a measured time."""
    overall: PublishedErrors | None
    """None if no row has both times."""
    by_source: dict[str, PublishedErrors]
    by_gpu: dict[str, PublishedErrors]
    by_kind: dict[str, PublishedErrors]
    pairs: int
    """Pairs of rows whose order was judged."""
    pairs_right: int
    fits: int
    """Rows of which it is known whether they fit."""
    fits_right: int
    memory: PublishedErrors | None
    """Errors of peak memory; None if nobody measured any."""
    skipped: dict[str, int]
    """Why rows have no prediction, and how many."""


def summarize_published(judged: Sequence[JudgedRow]) -> PublishedSummary:
    """The summary of judged rows."""
    timed = [it for it in judged if it.ratio is not None]
    known = [it for it in judged if it.fits is not None and is_memory_known(it.row)]
    pairs = list(_pairs(timed))
    weighed = [it.memory_ratio for it in judged if it.memory_ratio is not None]
    return PublishedSummary(
        rows=len(judged),
        predicted=len(timed),
        overall=_by(timed, lambda _: ALL).get(ALL),
        by_source=_by(timed, lambda it: it.row.origin),
        by_gpu=_by(timed, lambda it: it.row.gpu),
        by_kind=_by(timed, lambda it: kind_of(it.row)),
        pairs=len(pairs),
        pairs_right=sum(is_order_kept(*pair) for pair in pairs),
        fits=len(known),
        fits_right=sum(it.fits is not it.row.failed for it in known),
        memory=errors_of(weighed) if weighed else None,
        skipped=dict(Counter(it.skipped for it in judged if it.skipped).most_common()),
    )


def errors_of(ratios: Sequence[float]) -> PublishedErrors:
    """The errors of predicted over measured times.

    >>> errors_of([1.1, 0.9, 1.0]).median
    0.1
    """
    signed = np.array(ratios) - 1
    sizes = np.abs(signed)
    return PublishedErrors(
        rows=len(ratios),
        median=round(float(np.median(sizes)), 6),
        ninetieth=round(float(np.quantile(sizes, 0.9)), 6),
        signed=round(float(median(signed)), 6),
    )


def kind_of(row: PublishedRow) -> str:
    """What a row's parallelism is besides data parallelism."""
    words = []
    if row.zero in ("3", "2", "hsdp", ""):
        words.append("FSDP")
    for name, degree in (("TP", row.tp), ("PP", row.pp), ("CP", row.cp), ("EP", row.ep)):
        if (degree or 1) > 1:
            words.append(name)
    return " ".join(words) or "DP"


def is_memory_known(row: PublishedRow) -> bool:
    """Whether it is known if a row fits."""
    return row.failed or row.measured_bytes is not None


def _pairs(judged: Iterable[JudgedRow]) -> Iterable[tuple[JudgedRow, JudgedRow]]:
    groups: dict[Hashable, list[JudgedRow]] = defaultdict(list)
    for it in judged:
        groups[_alike(it.row)].append(it)
    for group in groups.values():
        for one, other in combinations(group, 2):
            first, second = one.row.measured_s or 0.0, other.row.measured_s or 0.0
            if max(first, second) > (1 + APART) * min(first, second):
                yield one, other


def is_order_kept(one: JudgedRow, other: JudgedRow) -> bool:
    """Whether the faster of two rows is predicted to be faster."""
    measured = (one.row.measured_s or 0.0) < (other.row.measured_s or 0.0)
    return measured == ((one.predicted_s or 0.0) < (other.predicted_s or 0.0))


def _alike(row: PublishedRow) -> Hashable:
    """All that rows share which differ in degrees only."""
    return (
        row.source, row.model, row.gpu, row.gpus, row.global_batch, row.dtype, row.recompute,
        row.compile, row.layers, row.hidden, row.heads, row.seq,
    )  # fmt: skip


def _by(judged: Iterable[JudgedRow], key: Callable[[JudgedRow], str]) -> dict[str, PublishedErrors]:
    groups: dict[str, list[float]] = defaultdict(list)
    for it in judged:
        if it.ratio is not None:
            groups[key(it)].append(it.ratio)
    return {name: errors_of(groups[name]) for name in sorted(groups)}
