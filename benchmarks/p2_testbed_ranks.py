"""What each rank of the testbed does for `p2_testbed.py`. Enters: a `Session`: the programs of
cases of one network. Leaves: records in the results file, appended case by case by the first rank.

The clocks of all ranks are one: a run lasts from the moment the last rank begins to the moment the
last is done. Each run's result is compared with the sum.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from meshwright.base.quantities import Bytes, Seconds
from meshwright.collectives.lowering import Groups, LoweredStep
from meshwright.collectives.recipe import recipe
from meshwright.run.comm.communicator import Communicator
from meshwright.run.comm.programs import Reducer
from meshwright.run.launch.gpus import device_of_rank
from meshwright.validate.bed_rows import (
    BedCalibration,
    Key,
    LevelTimes,
    Record,
    Result,
    write_records,
)

FEW = 64
"""Elements of a message that is all latency."""

REST = 0.01
"""Seconds before each run in which the token buckets fill again."""

REPETITIONS = 5
"""Of each simple measurement; of a few elements five times as many."""

Times = list[tuple[float, float]]
"""Seconds and load average of each repetition."""


class Job(NamedTuple):
    """The programs of a case."""

    key: Key
    programs: tuple[str, ...]
    lowered: tuple[tuple[LoweredStep, ...], ...]
    groups: Groups
    expected: float
    """Seconds that it takes to measure them."""


class Session(NamedTuple):
    """What the ranks of a network do."""

    network: str
    levels: tuple[tuple[str, Groups], ...]
    """What is measured of the network itself; nothing if that is known."""
    jobs: tuple[Job, ...]
    payload: Bytes
    rounds: int
    near_rounds: int
    near: float
    until: float
    """No case is begun that would not end before, in seconds of the machine's clock."""
    results: Path


def measure_cases(session: Session) -> None:
    """Measure as many cases as there is time for."""
    clock = Clock()
    if session.levels:
        clock.record(session.results, [_calibration(clock, session)])
    wire = Communicator()
    for number, job in enumerate(session.jobs, start=1):
        begun = time.time()
        if not clock.agreed(begun + job.expected < session.until):
            continue
        times = time_programs(clock, wire, job, session)
        clock.record(session.results, _results(job, session.payload, times))
        if dist.get_rank() == 0:
            print(
                f"{number}/{len(session.jobs)} {' | '.join(job.key)}: {len(job.programs)} programs,"
                f" {time.time() - begun:.0f} s (expected {job.expected:.0f}), load "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )


class Clock:
    """What all ranks say to each other beside what is measured, over gloo and on CPUs."""

    def __init__(self) -> None:
        self.device, self._all = device_of_rank(), dist.new_group(backend="gloo")

    def agreed(self, word: bool) -> bool:
        """What the first rank says."""
        said = torch.tensor([float(word)])
        dist.broadcast(said, 0, self._all)
        return bool(said.item())

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds from the moment the last rank begins until the last is done, on all ranks.

        Gloo's barrier lets ranks go one after the other; they wait until all must have left it.
        """
        self._settle()
        dist.barrier(self._all)
        time.sleep(REST)
        begun = time.monotonic()
        work()
        self._settle()
        moments = torch.tensor([begun, time.monotonic()], dtype=torch.float64)
        dist.all_reduce(moments, dist.ReduceOp.MAX, self._all)
        return float(moments[1] - moments[0])

    def _settle(self) -> None:
        """Wait for the GPU, busily: a core that sleeps may take milliseconds to wake up."""
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            while not done.query():  # type: ignore[no-untyped-call]
                pass

    def record(self, results: Path, records: Sequence[Record]) -> None:
        """Have the first rank add to the results file."""
        if dist.get_rank() == 0:
            with results.open("a") as file:
                file.write(write_records(records))


def time_programs(clock: Clock, wire: Communicator, job: Job, session: Session) -> list[Times]:
    """Times of each program, in rounds of a new order each; in the last rounds only of those that
    are nearly as fast as the fastest.
    """
    rank, elements = dist.get_rank(), session.payload // 4
    reducers = [Reducer(wire, recipe(steps, job.groups, rank)) for steps in job.lowered]
    together = next(group for group in job.groups if rank in group)
    base = torch.arange(elements, dtype=torch.float32, device=clock.device) % 251
    total, data = base * sum(member + 1 for member in together), base.clone()

    def run(reducer: Reducer, size: int) -> tuple[float, float]:
        torch.mul(base, rank + 1, out=data)
        seconds = clock.timed(lambda: reducer.all_reduce(data[:size]))
        assert torch.equal(data[:size], total[:size]), "the result is not the sum"
        return seconds, os.getloadavg()[0]

    for reducer in reducers:
        run(reducer, FEW)
    program_times: list[Times] = [[] for _ in reducers]
    for turn in range(session.rounds + session.near_rounds):
        fastest = min((_median(times) for times in program_times if times), default=0.0)
        for i in random.Random(f"{job.key}/{turn}").sample(range(len(reducers)), len(reducers)):
            if turn < session.rounds or _median(program_times[i]) <= session.near * fastest:
                program_times[i].append(run(reducers[i], elements))
    return program_times


def time_levels(clock: Clock, groups: Sequence[Groups], elements: int) -> list[tuple[float, float]]:
    """For each level's groups, an AllReduce of a few elements and of many: medians of seconds."""
    wire, rank = Communicator(), dist.get_rank()
    data = torch.zeros(elements, device=clock.device)
    medians = []
    for level in groups:
        members = next((group for group in level if rank in group), (rank,))
        wire.prepare([members])
        few, many = (partial(wire.all_reduce, data[:size], members) for size in (FEW, elements))
        clock.timed(few)
        small = statistics.median(clock.timed(few) for _ in range(5 * REPETITIONS))
        large = statistics.median(clock.timed(many) for _ in range(REPETITIONS))
        medians.append((small, large))
    return medians


def _calibration(clock: Clock, session: Session) -> BedCalibration:
    """What is measured of a network itself: by rings, whatever its cases use."""
    names, groups = zip(*session.levels, strict=True)
    with _told(NCCL_ALGO="ring"):
        times = time_levels(clock, groups, session.payload // 4)
    return BedCalibration(
        network=session.network,
        payload=session.payload,
        load=round(os.getloadavg()[0], 2),
        levels=tuple(
            LevelTimes(level=level, small_s=Seconds(small), large_s=Seconds(large))
            for level, (small, large) in zip(names, times, strict=True)
        ),
    )


@contextmanager
def _told(**variables: str) -> Iterator[None]:
    """Variables that NCCL reads when it makes a communicator."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _results(job: Job, payload: Bytes, program_times: Sequence[Times]) -> list[Result]:
    network, axes, reduce, matrix = job.key
    return [
        Result(
            network=network,
            axes=axes,
            reduce=reduce,
            matrix=matrix,
            program=program,
            payload=payload,
            seconds=tuple(Seconds(round(seconds, 5)) for seconds, _ in times),
            load=tuple(round(load, 1) for _, load in times),
        )
        for program, times in zip(job.programs, program_times, strict=True)
    ]


def _median(times: Times) -> float:
    return statistics.median(seconds for seconds, _ in times)
