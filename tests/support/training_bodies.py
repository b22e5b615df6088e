"""What ranks do in tests and benchmarks of whole trainings; they import it by name."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from meshwright.plan.plan import Measurement
from meshwright.run.training import TrainingTask, train


def trains_each(tasks: Sequence[TrainingTask]) -> list[Measurement]:
    """Train one task after the other; each begins with the memory that the first had."""
    measurements = []
    for task in tasks:
        measurements.append(train(task))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return measurements


Spans = list[tuple[int, int]]
"""Begin and end in nanoseconds, apart from each other and in order."""


def beside_communication(task: TrainingTask) -> tuple[int, int]:
    """Nanoseconds that this rank's GPU computes from the first collective's kernel to the last
    one's, and those of them in which a collective's kernel runs as well.
    """
    train(task._replace(steps=1))
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        train(task)
    kernels = [
        (event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in recorded.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA
    ]
    talking = joined((begin, end) for name, begin, end in kernels if "nccl" in name.lower())
    first, last = talking[0][0], talking[-1][1]
    computing = joined(
        (max(begin, first), min(end, last))
        for name, begin, end in kernels
        if "nccl" not in name.lower() and not name.startswith("Mem")
    )
    return length(computing), length(computing) + length(talking) - length(
        joined([*computing, *talking])
    )


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Moments that are in some of the spans."""
    merged: Spans = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def length(spans: Spans) -> int:
    """Of all of them."""
    return sum(end - begin for begin, end in spans)
