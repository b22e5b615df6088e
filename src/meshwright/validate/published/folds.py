"""Cross-validation folds of published rows, and the kernel rates fitted without each. Enters: rows.
Leaves: for a row the fold in which it lies, for a machine its rates fitted on the other folds.

For each GPU the pairs of a source (without date and revision) and a model, sorted, are dealt in
turn to FOLDS folds, so that rows of one model of one source on one GPU are never in two. The
catalogue's rates are fitted on all rows; `published_folds.json` has, by the number of a fold and
the name of a machine, those that were fitted on all rows but that fold's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Rates
from meshwright.validate.csv_table import embedded_table
from meshwright.validate.published.rows import PublishedRow

FITTED = "published_folds.json"
FOLDS = 5

Key = tuple[str, str, str]
"""GPU, source, model."""


class FoldRates(msgspec.Struct, frozen=True, kw_only=True):
    """What kernels reach, fitted on all folds but one."""

    rates: Rates
    fusing: Rates | None


def key_of(row: PublishedRow) -> Key:
    """What rows of one fold share."""
    return row.gpu, row.origin, row.model


def folds_of(rows: Iterable[PublishedRow]) -> Mapping[Key, int]:
    """The fold of every GPU, source and model."""
    folds: dict[Key, int] = {}
    dealt: dict[str, int] = {}
    for key in sorted({key_of(row) for row in rows}):
        folds[key] = dealt.setdefault(key[0], 0) % FOLDS
        dealt[key[0]] += 1
    return folds


def fold_rates() -> Mapping[str, Mapping[str, FoldRates]]:
    """By the number of a fold and the name of a machine."""
    return msgspec.json.decode(embedded_table(FITTED), type=dict[str, dict[str, FoldRates]])


def held_out(cluster: Cluster, fold: int) -> Cluster:
    """A machine of the catalogue with rates that were fitted without a fold."""
    fitted = fold_rates()[str(fold)].get(cluster.name)
    if fitted is None:
        return cluster
    fusing = UNSET if fitted.fusing is None else fitted.fusing
    return replace(cluster, device=replace(cluster.device, rates=fitted.rates, fusing=fusing))
