"""How long things took on a rank. Enters: what is done, by kind and name. Leaves: seconds of each.

A recorder that does not record costs next to nothing. On a GPU, where operators are only launched,
recording waits for the device after each, so that a recorded step is slower than others: its parts
are measured, its whole is not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

Kind = Literal[
    "forward", "backward", "carry", "bring", "settle", "gather", "statistics", "exchange"
]

COMPUTING: tuple[Kind, ...] = ("forward", "backward")
TRAVELLING: tuple[Kind, ...] = ("carry", "bring", "settle", "gather", "statistics", "exchange")

_NOTHING: AbstractContextManager[None] = nullcontext()


class Recorder:
    """Adds up seconds while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seconds: dict[tuple[Kind, str], float] = defaultdict(float)

    def timed(self, kind: Kind, name: str) -> AbstractContextManager[None]:
        """Counts what happens inside."""
        return self._timed(kind, name) if self.on else _NOTHING

    @contextmanager
    def _timed(self, kind: Kind, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[kind, name] += time.perf_counter() - begin
