"""Kernel timing: CUDA graph replays timed by events on a GPU, a wall clock on a CPU. Enters: what
to run. Leaves: median seconds of one run.

On a GPU many runs are captured in one CUDA graph and its replays are timed by events, so that the
host's work between kernels does not count; what waits for the device cannot be captured and is
timed in a plain loop. On a CPU a clock is read around enough runs to be well above its grain.
Knows nothing of operators. Inputs stay in the cache between runs, as those of a real step would.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds

Made = tuple[torch.Tensor, ...]
Body = Callable[[Made], object]
Run = Callable[[], object]

SAMPLE = Seconds(2e-3)
"""How long one reading should take, against about 5 us of a graph's launch and 1 us of an event."""

SHORT, MANY = Seconds(1e-4), 200
"""What takes the host less than this is captured this many times: the device may take far less."""

FEWEST, MOST = 3, 30
"""Readings of which the median is taken."""

ENOUGH = 15
"""Readings on a CPU above which a longer budget makes each longer instead: where processes share a
core, one must see several turns of each."""

WARM_UP = 3


@contextmanager
def timing_stream(device: torch.device) -> Iterator[None]:
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


def nothing() -> Made:
    """What comes before a pass that needs nothing."""
    return ()


def seconds_of(
    body: Body, device: torch.device, budget: Seconds, *, before: Callable[[], Made] = nothing
) -> Seconds:
    """The median of several readings, as many as the budget allows; inside `timing_stream`.

    What `before` makes is given to the body and not timed.
    """
    return _on_gpu(body, before, budget) if device.type == "cuda" else _on_cpu(body, before, budget)


def _on_cpu(body: Body, before: Callable[[], Made], budget: Seconds) -> Seconds:
    run = partial(body, before())
    run()
    once = _clocked(run, 1)
    repeats = max(1, round(max(SAMPLE, budget / ENOUGH) / max(once, 1e-9)))
    return _median(lambda: _clocked(run, repeats), once * repeats, repeats, budget)


def _on_gpu(body: Body, before: Callable[[], Made], budget: Seconds) -> Seconds:
    run = partial(body, before())
    _repeated(run, WARM_UP)
    once = _by_events(lambda: _repeated(run, WARM_UP)) / WARM_UP
    repeats = MANY if once < SHORT else max(1, round(SAMPLE / once))
    if _waits(run):
        replay: Run = partial(_repeated, run, repeats)
    else:
        del run
        replay = _captured(body, before, repeats)
    replay()
    return _median(lambda: _by_events(replay), _by_events(replay), repeats, budget)


def _median(
    reading: Callable[[], float], expected: float, repeats: int, budget: Seconds
) -> Seconds:
    count = min(max(round(budget / max(expected, 1e-9)), FEWEST), MOST)
    return Seconds(statistics.median(reading() for _ in range(count)) / repeats)


def _repeated(run: Run, repeats: int) -> None:
    for _ in range(repeats):
        run()


def _clocked(run: Run, repeats: int) -> float:
    begin = time.perf_counter()
    _repeated(run, repeats)
    return time.perf_counter() - begin


def _by_events(run: Run) -> float:
    begin, end = _event(), _event()
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _waits(run: Run) -> bool:
    """Whether something waits for the device.

    Not left to the capture to find out: until PyTorch 2.12 a capture that fails leaves the
    allocator unusable (pull request 180395).
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def _captured(body: Body, before: Callable[[], Made], repeats: int) -> Run:
    """Some runs as one CUDA graph.

    What comes before is captured too: seeds of a captured dropout lie on the device, others do not.
    """
    stream = torch.cuda.current_stream()
    first, timed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    prepared: Made = ()
    pool = torch.cuda.graph_pool_handle()
    if before is not nothing:
        with torch.cuda.graph(first, pool=pool, stream=stream):
            prepared = before()
        first.replay()
    with torch.cuda.graph(timed, pool=pool, stream=stream):
        _repeated(partial(body, prepared), repeats)

    def replay(_held: object = (first, prepared)) -> None:
        """The graph reads memory of what came before, which must live as long."""
        timed.replay()

    return replay
