"""Processes that work for another one."""

from __future__ import annotations

import signal


def leave_interrupts_alone() -> None:
    """To be run in a worker: the process that the user has started ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
