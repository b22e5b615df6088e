"""AllReduce inside one machine against the measurements of vTrain. Enters: rows of its tables.
Leaves: each measured time (out of place) beside its prediction, the errors, the constants.

The shipped constants are fitted to a half of the rows that a fixed rule draws (`fitted`). Two
tests say how far they carry (`Evidence`): the other half, and each group size predicted from
constants that were fitted without it.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.units import Bytes, Seconds
from meshwright.cost.protocol import (
    MACHINES,
    Constants,
    Protocol,
    all_reduce_seconds,
    protocol,
)
from meshwright.validate.table import Cells, embedded_table, parse_table, read_table, whole

COLUMNS = ("gpu", "ranks", "bytes", "out_of_place_ns")
"""Those that are read; others, as the tables' `in_place_ns`, may be there."""

Group = tuple[str, int]


class AllReduceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured AllReduce: GPUs 0 to `ranks` - 1 of one machine, each holding `bytes`."""

    gpu: str
    ranks: int
    bytes: Bytes
    measured_s: Seconds

    @property
    def group(self) -> Group:
        """The machine and how many of its GPUs."""
        return self.gpu, self.ranks

    @property
    def fitted(self) -> bool:
        """Whether the row is of the half to which the shipped constants are fitted."""
        return zlib.crc32(f"{self.gpu} {self.ranks} {self.bytes}".encode()) % 2 == 0


class AllReduceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measured AllReduce beside its prediction."""

    row: AllReduceRow
    predicted_s: Seconds
    protocol: Protocol

    @property
    def error(self) -> float:
        """Predicted against measured: +0.1 is ten per cent too slow."""
        return self.predicted_s / self.row.measured_s - 1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Mean errors on embedded rows of one group size that the constants have not seen."""

    other_half: float
    """Of the shipped constants, on the rows to which they are not fitted."""
    size_left_out: float
    """Of constants fitted to the machine's other group sizes, on all rows of this one."""


class GroupErrors(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions of one group size are off, as shares of the measured times."""

    gpu: str
    ranks: int
    rows: int
    mean_error: float
    worst_error: float
    evidence: Evidence | None


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a validation; errors are absolute."""

    mean_error: float
    mean_error_of_machine: dict[str, float]
    groups: tuple[GroupErrors, ...]
    constants: dict[str, Constants]


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
    most = MACHINES[cells["gpu"]].most
    ranks = whole(cells, "ranks", least=2)
    if ranks > most:
        raise InputError(
            f"ranks is {ranks}", f"give at most {most}, as a machine of {cells['gpu']}s has"
        )
    return AllReduceRow(
        gpu=cells["gpu"],
        ranks=ranks,
        bytes=Bytes(whole(cells, "bytes", least=1)),
        measured_s=Seconds(whole(cells, "out_of_place_ns", least=1) / 1e9),
    )


def compare(rows: Iterable[AllReduceRow]) -> list[AllReduceComparison]:
    """Every row beside its prediction, with the shipped constants."""
    return [
        AllReduceComparison(
            row=row,
            predicted_s=all_reduce_seconds(MACHINES[row.gpu], row.ranks, row.bytes),
            protocol=protocol(MACHINES[row.gpu], row.ranks, row.bytes),
        )
        for row in rows
    ]


def summarize(
    comparisons: Sequence[AllReduceComparison], evidence: Mapping[Group, Evidence] | None = None
) -> CollectiveSummary:
    """The figures of a validation; `evidence` where the rows are the embedded ones."""
    machines: dict[str, list[float]] = defaultdict(list)
    groups: dict[Group, list[float]] = defaultdict(list)
    for it in comparisons:
        machines[it.row.gpu].append(abs(it.error))
        groups[it.row.group].append(abs(it.error))
    return CollectiveSummary(
        mean_error=fmean(abs(it.error) for it in comparisons),
        mean_error_of_machine={name: fmean(errors) for name, errors in sorted(machines.items())},
        groups=tuple(
            GroupErrors(
                gpu=group[0],
                ranks=group[1],
                rows=len(errors),
                mean_error=fmean(errors),
                worst_error=max(errors),
                evidence=None if evidence is None else evidence[group],
            )
            for group, errors in sorted(groups.items())
        ),
        constants={name: MACHINES[name].constants for name in sorted(machines)},
    )
