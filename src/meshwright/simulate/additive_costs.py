"""Nanoseconds of the additive cost model (`additive`), in arrays by layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


class OpGroupCosts(NamedTuple):
    """Nanoseconds for each layout of a unit."""

    forward: Costs
    backward: Costs
    sums: Costs
    update: Costs


class ConsumerCosts(NamedTuple):
    """Nanoseconds for each pair of layouts, the maker's first."""

    forward: Costs
    backward: Costs
    sums: Costs


class EdgeCosts(NamedTuple):
    """One reading of a tensor by another unit than its maker."""

    maker: int
    reader: int
    kind: int
    """Consumers of the same kind cost the same."""
    shared: int
    """How many units read the same tensor."""
