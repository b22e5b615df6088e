"""What the user has decided beforehand. Enters: texts. Leaves: `Constraints`, which say what is
allowed.
"""

from __future__ import annotations

import msgspec


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
