"""What the user has decided beforehand. Enters: texts. Leaves: `Constraints`, which say what is
allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.parallelize.layout import Factor
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.units import Unit


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that a search may not change."""

    pinned: tuple[tuple[str, str], ...] = ()
    """Layouts of units, by a pattern of their names (as in `fnmatch`)."""
    forbidden: tuple[tuple[str, str], ...] = ()
    """Roles that a level may not have, as ("channel", "node")."""
    fixed: tuple[tuple[str, str], ...] = ()
    """Degrees of splits and values of options, as ("sample", "4") or ("micro-batches", "8")."""
    rules: tuple[str, ...] = ()
    """Rules that may not be used, by pattern."""


def fixed_option(constraints: Constraints, name: str) -> int | None:
    """The value that an option must have."""
    return next((int(value) for own, value in constraints.fixed if own == name), None)


def forbids(constraints: Constraints, role: str, level: str) -> bool:
    """Whether a level may not have a role."""
    return (role, level) in constraints.forbidden


def allows(
    constraints: Constraints, unit: Unit, roles: Codes, own: Sequence[Factor]
) -> NDArray[np.bool_]:
    """Which layouts a unit may have."""
    return np.ones(len(roles), np.bool_)
