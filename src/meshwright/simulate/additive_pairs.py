"""Resharding costs of pairs of layouts, and which layouts are legal. Compiled. Enters: tables,
codes of layouts. Leaves: nanoseconds and masks, in arrays of the caller's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled
from meshwright.sharding.reshard import Codes, resharding_by_parts
from meshwright.simulate.additive_costs import Costs
from meshwright.simulate.collective_table import CollectiveTable, price
from meshwright.simulate.operator_table import TimeTable


class PairWorkspace(NamedTuple):
    """Arrays of compiled code, which makes none."""

    scratch: Codes
    operation: NDArray[np.int64]
    held: NDArray[np.float64]
    busy: NDArray[np.float64]
    missing: NDArray[np.int64]
    """The operation, its members and those beside that a table lacks."""


@compiled
def mark_legal(
    table: TimeTable,
    sizes: NDArray[np.int64],
    kind: int,
    splits: int,
    roles: Codes,
    mask: NDArray[np.bool_],
) -> None:
    """Mark layouts of a type of units in which it can be cut."""
    for row in range(len(roles)):
        for split in range(splits):
            degree = 1
            for factor in range(len(sizes)):
                if roles[row, factor] == split:
                    degree *= sizes[factor]
            mask[row] &= table.cuttable[kind, split, table.place[degree]] > 0


@compiled
def price_pairs(
    table: CollectiveTable,
    before: Codes,
    after: Codes,
    size: float,
    costs: Costs,
    at: int,
    workspace: PairWorkspace,
) -> int:
    """Price resharding from pair `at` on; the pair at which a row of the table is missing."""
    operation, held = workspace.operation, workspace.held
    while at < len(costs):
        count = resharding_by_parts(
            before[at], after[at], table.sizes, table.cutting, size, workspace.scratch,
            operation, held,
        )  # fmt: skip
        total = 0.0
        for n in range(count):
            kind, inside, every = operation[n, 0], operation[n, 1], operation[n, 2]
            time, _ = price(table, kind, inside, every, held[n], workspace.busy)
            if time < 0:
                workspace.missing[0], workspace.missing[1], workspace.missing[2] = (
                    kind,
                    inside,
                    every,
                )
                return at
            total += time
        costs[at] = total
        at += 1
    return at
