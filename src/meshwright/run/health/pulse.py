"""Heartbeat hook of a training step: progress, and waiting for other ranks. Enters and leaves:
nothing.
"""

from __future__ import annotations

from typing import Protocol


class Pulse(Protocol):
    """Is told that something is done, and whether what follows needs other ranks."""

    def __call__(self, *, waiting: bool = False) -> None:
        """Something is done."""


def null_pulse(*, waiting: bool = False) -> None:
    """Nobody watches."""
