"""K-fold cross-validation of operator prices against measured calls. Enters: a table of measured
calls. Leaves: each measured time beside its prediction, and the errors by kind.

The rows are dealt into folds by a fixed rule; each fold is predicted from all others. Rows of one
call never part, so that no call is predicted from itself.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, quantiles

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Device
from meshwright.cost.operator import SHORTEST, OperatorPricer, Pass, Source
from meshwright.cost.profile_table import MeasuredCall, PriceTable
from meshwright.graph.operator_graph import Call


class OperatorComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured pass of an operator beside its prediction."""

    call: Call
    which: Pass
    measured_s: Seconds
    predicted_s: Seconds
    source: Source

    @property
    def error(self) -> float:
        """Predicted against measured: +0.1 is ten per cent too slow.

        What takes less than a kernel's least time is taken to take that.
        """
        return max(self.predicted_s, SHORTEST) / max(self.measured_s, SHORTEST) - 1


class OperatorErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute errors of some comparisons, as shares of the measured times."""

    passes: int
    median: float
    ninetieth: float


def compare_operators(
    table: PriceTable, device: Device, folds: int = 5
) -> list[OperatorComparison]:
    """Every measured pass beside the prediction that the other folds give."""
    if folds < 2:
        raise InputError(f"the rows cannot be dealt into {folds} folds", "give 2 or more")
    dealt: dict[int, list[MeasuredCall]] = defaultdict(list)
    for row in table.rows:
        dealt[zlib.crc32(msgspec.json.encode(row.call)) % folds].append(row)
    comparisons: list[OperatorComparison] = []
    for fold, held_out in sorted(dealt.items()):
        others = tuple(row for i, rows in sorted(dealt.items()) if i != fold for row in rows)
        pricer = OperatorPricer(device, PriceTable(origin=table.origin, rows=others))
        comparisons += (comparison for row in held_out for comparison in _compare(pricer, row))
    return comparisons


def _compare(pricer: OperatorPricer, row: MeasuredCall) -> Iterator[OperatorComparison]:
    price = pricer.price(row.call)
    passes: tuple[tuple[Pass, Seconds | None], ...] = (
        ("forward", row.forward),
        ("backward", row.backward),
    )
    for which, measured in passes:
        predicted = price.forward if which == "forward" else price.backward
        if measured is not None and predicted.seconds:
            yield OperatorComparison(
                call=row.call,
                which=which,
                measured_s=measured,
                predicted_s=predicted.seconds,
                source=predicted.source,
            )


def errors_by_kind(comparisons: Sequence[OperatorComparison]) -> dict[str, OperatorErrors]:
    """Errors for each kind, and under "all" for all of them."""
    groups: dict[str, list[float]] = defaultdict(list)
    for it in comparisons:
        groups[it.call.kind].append(abs(it.error))
        groups["all"].append(abs(it.error))
    return {kind: _errors(sizes) for kind, sizes in sorted(groups.items())}


def _errors(sizes: Iterable[float]) -> OperatorErrors:
    every = sorted(sizes)
    ninetieth = quantiles(every, n=10, method="inclusive")[-1] if len(every) > 1 else every[0]
    return OperatorErrors(passes=len(every), median=median(every), ninetieth=ninetieth)
