"""Verbose logging to standard error. Enters: nothing. Leaves: log lines, with the seconds since the
start. A module tells through `logging.getLogger(__name__)` and knows nothing of this.
"""

from __future__ import annotations

import logging
import sys
import time


class _Told(logging.Handler):
    """Writes where standard error is now: a progress bar may have put itself in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        seconds, room = time.monotonic() - self._began, record.name.removeprefix("meshwright.")
        print(f"{seconds:7.2f} s  {room}: {record.getMessage()}", file=sys.stderr)


def tell() -> None:
    """From now on all of Meshwright says what it does."""
    logger = logging.getLogger("meshwright")
    logger.addHandler(_Told())
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
