"""How long something takes on a device. Enters: what to run. Leaves: median seconds of one run.

On a GPU many runs are captured in one CUDA graph and its replays are timed by events, so that the
host's work between kernels does not count; what cannot be captured, since it waits for the device,
is timed in a plain loop. On a CPU a clock is read around enough runs to be well above its grain.
Knows nothing of operators. Inputs stay in the cache between runs, as those of a real step would.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from meshwright.foundation.errors import InputError
from meshwright.foundation.units import Seconds

Body = Callable[[], object]

SAMPLE = Seconds(2e-3)
"""How long one reading should take, against about 5 us of a graph's launch and 1 us of an event."""

SHORT, MANY = Seconds(1e-4), 200
"""What takes the host less than this is captured this many times: the device may take far less."""

FEWEST, MOST = 3, 30
"""Readings of which the median is taken."""

WARM_UP = 3


@contextmanager
def measuring_on(device: torch.device) -> Iterator[None]:
    """Where measuring happens: on a GPU one stream for drawing, warming up and capturing.

    The backward pass runs on the stream of its forward pass, so both must be the captured one.
    """
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {str(device)!r} cannot be measured", "give 'cuda' or 'cpu'")
    if device.type == "cpu":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(_stream(device)):
        yield
        torch.cuda.synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: every further stream would hold a workspace of cuBLAS of its own."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def seconds_of(body: Body, device: torch.device, budget: Seconds) -> Seconds:
    """The median of several readings, as many as the budget allows; inside `measuring_on`."""
    return _on_gpu(body, budget) if device.type == "cuda" else _on_cpu(body, budget)


def _on_cpu(body: Body, budget: Seconds) -> Seconds:
    body()
    once = _clocked(body, 1)
    repeats = max(1, round(SAMPLE / max(once, 1e-9)))
    return _median(lambda: _clocked(body, repeats), once * repeats, repeats, budget)


def _on_gpu(body: Body, budget: Seconds) -> Seconds:
    for _ in range(WARM_UP):
        body()
    once = _by_events(lambda: _repeated(body, WARM_UP)) / WARM_UP
    repeats = MANY if once < SHORT else max(1, round(SAMPLE / once))
    replay = _captured(body, repeats) or (lambda: _repeated(body, repeats))
    replay()
    first = _by_events(replay)
    return _median(lambda: _by_events(replay), first, repeats, budget)


def _median(
    reading: Callable[[], float], expected: float, repeats: int, budget: Seconds
) -> Seconds:
    count = min(max(round(budget / max(expected, 1e-9)), FEWEST), MOST)
    return Seconds(statistics.median(reading() for _ in range(count)) / repeats)


def _repeated(body: Body, repeats: int) -> None:
    for _ in range(repeats):
        body()


def _clocked(body: Body, repeats: int) -> float:
    begin = time.perf_counter()
    _repeated(body, repeats)
    return time.perf_counter() - begin


def _by_events(body: Body) -> float:
    begin, end = _event(), _event()
    torch.cuda.synchronize()
    begin.record()
    body()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(body: Body, repeats: int) -> Body | None:
    """Some runs as one CUDA graph, or None if the body waits for the device."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            _repeated(body, repeats)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay
