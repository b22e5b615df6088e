"""AllReduce inside one machine against the measurements of vTrain. Enters: rows of its tables.
Leaves: each measured time (out of place) beside what plans are priced with, and the errors.

A row's group is GPUs 0 to n - 1 of a machine of the catalogue, and its prediction the cheaper of
NCCL's ring and tree (`cost.alpha_beta`). No row is used for it but one: the catalogue has the
bandwidth of A100s on NVSwitch from 8 of them at 1 GiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import fmean

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import CostLine, Pricer, cheapest_line
from meshwright.cost.backend import NCCL
from meshwright.cost.collective import Collective
from meshwright.cost.pattern import Digit, PatternUse
from meshwright.validate.csv_table import Cells, embedded_table, parse_table, read_table, whole

COLUMNS = ("gpu", "ranks", "bytes", "out_of_place_ns")
"""Those that are read; others, as the tables' `in_place_ns`, may be there."""

MACHINES = {"A100": "vtrain-a100", "V100": "gcp-v100"}
"""The cluster of the catalogue for each value of the `gpu` column."""

SMALL = Bytes(32 << 20)
"""Up to so many bytes, latencies and protocols weigh."""


class AllReduceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured AllReduce: GPUs 0 to `ranks` - 1 of one machine, each holding `bytes`."""

    gpu: str
    ranks: int
    bytes: Bytes
    measured_s: Seconds


class AllReduceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured AllReduce beside its prediction."""

    row: AllReduceRow
    predicted_s: Seconds

    @property
    def error(self) -> float:
        """Predicted against measured: +0.1 is ten per cent too slow."""
        return self.predicted_s / self.row.measured_s - 1


class AllReduceErrors(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions of one group size are off, as shares of the measured times."""

    gpu: str
    ranks: int
    rows: int
    mean: float
    small: float | None
    """The mean of rows of at most SMALL bytes; None without any."""
    worst: float
    largest: float
    """Predicted / measured - 1 of the most bytes."""


def embedded_rows() -> list[AllReduceRow]:
    """The rows of vTrain that ship with Meshwright.

    >>> len(embedded_rows())
    6144
    """
    name = "vtrain_allreduce.csv"
    return list(parse_table(embedded_table(name), name, COLUMNS, _row))


def load_rows(path: str) -> list[AllReduceRow]:
    """The rows of a file with the same columns."""
    rows = list(parse_table(read_table(path, COLUMNS), path, COLUMNS, _row))
    if not rows:
        raise InputError(
            f"{path!r} has no rows", f"give a CSV file with the columns {', '.join(COLUMNS)}"
        )
    return rows


def _row(cells: Cells) -> AllReduceRow:
    if cells["gpu"] not in MACHINES:
        raise InputError(f"gpu is {shown(cells['gpu'])}", nearest(cells["gpu"], MACHINES))
    ranks = whole(cells, "ranks", least=2)
    most = _machine(cells["gpu"]).devices
    if most % ranks:
        raise InputError(
            f"ranks is {ranks}", f"give a divisor of {most}, the {cells['gpu']}s of a machine"
        )
    return AllReduceRow(
        gpu=cells["gpu"],
        ranks=ranks,
        bytes=Bytes(whole(cells, "bytes", least=1)),
        measured_s=Seconds(whole(cells, "out_of_place_ns", least=1) / 1e9),
    )


@cache
def _machine(gpu: str) -> Cluster:
    return Cluster.named(MACHINES[gpu], node=1)


@cache
def _lines(gpu: str, ranks: int) -> tuple[CostLine, ...]:
    """The price of an AllReduce of the first GPUs of a machine, by algorithm."""
    machine = _machine(gpu)
    out = Digit(machine.devices // ranks, PatternUse.FIRST)
    pattern = ((), (out, Digit(ranks, PatternUse.MEMBER)))
    return Pricer(machine, NCCL, "best").lines(Collective.ALL_REDUCE, pattern)


def compare(rows: Iterable[AllReduceRow]) -> list[AllReduceComparison]:
    """Every row beside its prediction."""
    return [
        AllReduceComparison(
            row=row, predicted_s=cheapest_line(_lines(row.gpu, row.ranks), row.bytes).at(row.bytes)
        )
        for row in rows
    ]


def summarize(comparisons: Sequence[AllReduceComparison]) -> tuple[AllReduceErrors, ...]:
    """The errors by machine and group size."""
    groups: dict[tuple[str, int], list[AllReduceComparison]] = defaultdict(list)
    for it in comparisons:
        groups[it.row.gpu, it.row.ranks].append(it)
    return tuple(_errors(gpu, ranks, group) for (gpu, ranks), group in sorted(groups.items()))


def _errors(gpu: str, ranks: int, comparisons: Sequence[AllReduceComparison]) -> AllReduceErrors:
    small = [abs(it.error) for it in comparisons if it.row.bytes <= SMALL]
    return AllReduceErrors(
        gpu=gpu,
        ranks=ranks,
        rows=len(comparisons),
        mean=fmean(abs(it.error) for it in comparisons),
        small=fmean(small) if small else None,
        worst=max(abs(it.error) for it in comparisons),
        largest=max(comparisons, key=lambda it: it.row.bytes).error,
    )
