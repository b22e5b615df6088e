"""Step profiler of a rank: compute and exposed communication, by clock or CUDA events. Enters: what
is done, by kind and name. Leaves: seconds of each.

A recorder that does not record costs next to nothing. On a CPU parts are timed by the clock; on a
GPU, where operators are only launched, by CUDA events in the stream that runs them, so that a
recorded step goes as any other does: collectives beside computing. What the computing stream waits
for is a part of its own, the exposed communication (with a pipeline's bubble).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

Kind = Literal[
    "forward", "backward", "wait", "carry", "bring", "settle", "gather", "statistics", "exchange"
]

COMPUTING: tuple[Kind, ...] = ("forward", "backward")
INSIDE: tuple[Kind, ...] = ("statistics", "exchange")
"""What travels in the middle of an operator, whose seconds hold the wait for it."""
TRAVELLING: tuple[Kind, ...] = ("carry", "bring", "settle", "gather", *INSIDE)

_NOTHING: AbstractContextManager[None] = nullcontext()

Recorded = dict[tuple[Kind, str], float]


def computing(recorded: Recorded) -> float:
    """Seconds of operators, without what they waited for."""
    operators = sum(seconds for (kind, _), seconds in recorded.items() if kind in COMPUTING)
    return operators - sum(recorded.get(("wait", name), 0.0) for name in INSIDE)


def waiting(recorded: Recorded) -> float:
    """Seconds for which computing stood still, for something that travels."""
    return sum(seconds for (kind, _), seconds in recorded.items() if kind == "wait")


class Recorder:
    """Adds up seconds while it is on."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.on = False
        self._events = device is not None and device.type == "cuda"
        self._spans: list[tuple[Kind, str, torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: Recorded = defaultdict(float)

    @property
    def seconds(self) -> Recorded:
        """What was recorded so far; on a GPU once all of it is done."""
        if self._spans:
            torch.cuda.synchronize()
        for kind, name, begin, end in self._spans:
            self._seconds[kind, name] += begin.elapsed_time(end) / 1e3
        self._spans.clear()
        return dict(self._seconds)

    def timed(self, kind: Kind, name: str) -> AbstractContextManager[None]:
        """Counts what happens inside."""
        if not self.on:
            return _NOTHING
        return self._between_events(kind, name) if self._events else self._clocked(kind, name)

    @contextmanager
    def _clocked(self, kind: Kind, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds[kind, name] += time.perf_counter() - begin

    @contextmanager
    def _between_events(self, kind: Kind, name: str) -> Iterator[None]:
        """In the current stream of this thread: the computing one, or that of the lane."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._spans.append((kind, name, begin, end))
