"""Search clock: elapsed time and remaining budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from meshwright.search.budget import Budget


class Clock:
    """Runs from when it is made; of the time a share may be kept for what ends a search."""

    def __init__(self, budget: Budget, kept: float = 0.0) -> None:
        self._began, self._whole = time.monotonic(), budget.seconds
        self._most = None if budget.seconds is None else budget.seconds * (1 - kept)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float | None:
        """Seconds of the budget besides what is kept, less than 0 if they are exceeded; None if it
        is none of time.
        """
        return None if self._most is None else self._most - self.seconds

    @property
    def used(self) -> float:
        """The share of the budget, 1 at most; 0 if it is none of time."""
        return 0.0 if self._whole is None else min(1.0, self.seconds / self._whole)

    def enough(self) -> bool:
        """Whether the time is used up, but for what is kept."""
        return self.left is not None and self.left <= 0

    def over(self) -> bool:
        """Whether all of it is."""
        return self._whole is not None and self.seconds >= self._whole

    def hurry(self, share: float) -> Callable[[], bool]:
        """Whether a share of what time is left now is used up."""
        return self._until(share * (self.left or 0.0))

    def soon(self, share: float) -> Callable[[], bool]:
        """Whether a share of the whole budget is used up from now on."""
        return self._until(share * (self._whole or 0.0))

    def _until(self, seconds: float) -> Callable[[], bool]:
        end = math.inf if self._most is None else self.seconds + seconds
        return lambda: self.seconds >= end
