"""What each rank of the testbed does for `p2_testbed.py`. Enters: lowered programs. Leaves: times.

The clocks of all ranks are one: a run lasts from the moment the last rank begins to the moment the
last is done. Each run's result is compared with the sum.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from meshwright.reduce.lower import Groups, LoweredStep
from meshwright.reduce.recipe import recipe
from meshwright.run.programs import Reducer
from meshwright.run.wire import Wire

FEW = 64
"""Elements of a message that is all latency."""

REST = 0.01
"""Seconds before each run in which the token buckets fill again."""

Times = list[tuple[float, float]]
"""Seconds and load average of each repetition."""


def time_programs(
    programs: Sequence[tuple[LoweredStep, ...]],
    groups: Groups,
    elements: int,
    rounds: int,
    near_rounds: int,
    near: float,
    seed: str,
) -> list[Times]:
    """Times of each program, in rounds of a new order each; in the last rounds only of those that
    are nearly as fast as the fastest.
    """
    wire, rank = Wire(), dist.get_rank()
    reducers = [Reducer(wire, recipe(steps, groups, rank)) for steps in programs]
    together = next(group for group in groups if rank in group)
    base = torch.arange(elements, dtype=torch.float32) % 251
    total, data = base * sum(member + 1 for member in together), base.clone()

    def run(reducer: Reducer, size: int) -> tuple[float, float]:
        torch.mul(base, rank + 1, out=data)
        seconds = _timed(lambda: reducer.all_reduce(data[:size]))
        assert torch.equal(data[:size], total[:size]), "the result is not the sum"
        return seconds, os.getloadavg()[0]

    for reducer in reducers:
        run(reducer, FEW)
    found: list[Times] = [[] for _ in reducers]
    for turn in range(rounds + near_rounds):
        fastest = min((_median(times) for times in found if times), default=0.0)
        for i in random.Random(f"{seed}/{turn}").sample(range(len(reducers)), len(reducers)):
            if turn < rounds or _median(found[i]) <= near * fastest:
                found[i].append(run(reducers[i], elements))
    return found


def time_levels(
    groups: Sequence[Groups], elements: int, repetitions: int
) -> list[tuple[float, float]]:
    """For each level's groups, an AllReduce of a few elements and of many: medians of seconds."""
    wire, rank = Wire(), dist.get_rank()
    data = torch.zeros(elements)
    found = []
    for level in groups:
        own = next((group for group in level if rank in group), (rank,))
        wire.prepare([own])
        few, many = (partial(wire.all_reduce, data[:size], own) for size in (FEW, elements))
        small = statistics.median(_timed(few) for _ in range(5 * repetitions))
        large = statistics.median(_timed(many) for _ in range(repetitions))
        found.append((small, large))
    return found


def _median(times: Times) -> float:
    return statistics.median(seconds for seconds, _ in times)


def _timed(work: Callable[[], None]) -> float:
    """Seconds from the moment the last rank begins to the moment the last is done, on all ranks.

    Gloo's barrier lets ranks go one after the other; they wait until all must have left it.
    """
    dist.barrier()
    time.sleep(REST)
    begun = time.monotonic()
    work()
    moments = torch.tensor([begun, time.monotonic()], dtype=torch.float64)
    dist.all_reduce(moments, dist.ReduceOp.MAX)
    return float(moments[1] - moments[0])
