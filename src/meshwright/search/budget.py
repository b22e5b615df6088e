"""Search budget: seconds, proposals, or whichever is used up first."""

from __future__ import annotations

import math

import msgspec

from meshwright.base.errors import InputError, shown
from meshwright.base.integers import parse_whole
from meshwright.base.quantities import Seconds, parse_seconds

REMEDY = "give seconds or a number of proposals above 0, as '20s' or '5000'"


class Budget(msgspec.Struct, frozen=True):
    """Seconds, or a number of proposals, which makes a search reproducible to the last bit.

    >>> Budget.parse("20s"), Budget.parse("5000")
    (Budget(seconds=20.0, proposals=None), Budget(seconds=None, proposals=5000))
    """

    seconds: Seconds | None = None
    proposals: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.seconds, self.proposals) if limit is not None]
        if not limits or not all(limit > 0 and math.isfinite(limit) for limit in limits):
            raise InputError(f"a budget of {shown(limits[0] if limits else None)}", REMEDY)

    @staticmethod
    def parse(text: str) -> Budget:
        """A budget from text: a number of proposals, or a time with its unit."""
        if text.strip().isdecimal():
            return Budget(proposals=parse_whole(text))
        try:
            seconds = parse_seconds(text)
        except InputError:
            raise InputError(f"a budget of {shown(text)}", REMEDY) from None
        return Budget(seconds=seconds)

    @staticmethod
    def of(budget: str | float | Budget) -> Budget:
        """A budget as Python says it: a number is seconds, a text is as in `parse`.

        >>> Budget.of(20) == Budget.of("20s")
        True
        """
        match budget:
            case Budget():
                return budget
            case str():
                return Budget.parse(budget)
            case _:
                return Budget(seconds=Seconds(budget))

    def used(self, seconds: float, proposals: int) -> float:
        """The share that is used up."""
        shares = []
        if self.proposals is not None:
            shares.append(proposals / self.proposals)
        if self.seconds is not None:
            shares.append(seconds / self.seconds)
        return max(shares)
