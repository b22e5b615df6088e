"""Link benchmark: seconds per byte and latency of messages between real ranks. Enters: a `Cluster`,
on each rank of a process group of as many. Leaves: what was `LinkMeasurements`, the same on every
rank. Rank i is device i, row-major.

    seconds per byte = (seconds of a large message - seconds of a part of it) / difference in bytes

Latency, waiting for each other, and what buckets let through at once are in both and fall out.
Sizes are chosen by time, so that slow links do not take minutes and fast ones are well above the
grain of a clock.

    latency = half of what a small message, there and back, adds to computing

All ranks compute meanwhile: in a step of training nobody has a machine to himself, and everybody
comes a little late. What the figures mean for links is told in `link_fit`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.calibrate.comm_overhead import Products, measure_comm_overhead
from meshwright.calibrate.link_fit import LinkMeasurements, probes
from meshwright.calibrate.probes import Pair, Pairs, firsts
from meshwright.cluster.cluster import Cluster, CommOverhead
from meshwright.cost.backend import BACKENDS
from meshwright.run.comm.communicator import Communicator

BUDGET = Seconds(15.0)
"""What all readings of rates together should take."""

LONG = Seconds(0.3)
"""How long one reading takes where the budget allows it."""

READINGS = 5
"""Of which the median counts for latencies, and the shortest for rates: what else a machine does
only lengthens a transfer."""

TRIPS, STINT = 20, Seconds(3e-3)
"""Round trips of a small message in a reading, and about how long is computed before each."""

FIRST, MESSAGE = 1 << 16, 1 << 23
"""Bytes that are tried first, and of the largest message."""

PART = 4
"""The smaller message is such a part of the larger."""

GROWTH = 8
"""By how much the size grows at once: what is small says little of what is large."""


def measure_links(
    cluster: Cluster, device: torch.device | None = None, budget: Seconds = BUDGET
) -> LinkMeasurements:
    """Measure what there is to measure; called by all ranks at once."""
    require_world(cluster, dist.get_world_size())
    meter = _Meter(device or torch.device("cpu"))
    latencies = tuple(None if pair is None else meter.latency(pair) for pair in firsts(cluster))
    wanted = probes(cluster)
    # Trying sizes takes about as long as three readings, and sizes grow beyond what they must.
    readings = 1.3 * (READINGS * (1 + 1 / PART) + 3)
    each = min(LONG, budget / (readings * max(1, len(wanted))))
    paces = {pairs: meter.pace(pairs, each) for pairs in wanted}
    return LinkMeasurements(latencies, paces, meter.toll())


def require_world(cluster: Cluster, ranks: int) -> None:
    """Refuse to measure a cluster of another size."""
    if ranks != cluster.devices:
        sizes = " x ".join(f"{level.name} {level.cardinality}" for level in cluster.levels)
        raise InputError(
            f"{ranks} ranks were started, but cluster {cluster.name!r} has {cluster.devices} "
            f"devices ({sizes})",
            "start one rank for each device, or correct the cardinalities of the cluster file",
        )


class _Meter:
    """Times messages; every method is called by all ranks with the same arguments."""

    def __init__(self, device: torch.device) -> None:
        self._wire, self._rank, self._device = Communicator(), dist.get_rank(), device
        self._out = torch.zeros(MESSAGE, dtype=torch.uint8, device=device)
        self._into = torch.zeros_like(self._out)
        self._products = Products(device)
        self._stint = round(self._agreed(STINT / self._products.seconds()))
        """Products that take about so long; the same number on every rank."""

    def latency(self, pair: Pair) -> Seconds:
        """Median of half a round trip of a small message, less what starting one costs."""
        self._round_trip(pair)
        half = self._agreed(statistics.median(self._added(pair) for _ in range(READINGS))) / 2
        library = BACKENDS.get(dist.get_backend())
        return Seconds(max(0.0, half - (library.launch if library else 0.0)))

    def pace(self, pairs: Pairs, each: float) -> float:
        """Seconds for a byte of each pair, all at once, from the shortest of some readings."""
        size = FIRST
        self._seconds(pairs, size)
        # The better of two: what else a machine does only lengthens a reading.
        while (spent := min(self._seconds(pairs, size), self._seconds(pairs, size))) < each:
            size = math.ceil(size * min(max(1.3 * each / max(spent, 1e-9), 1.5), GROWTH))
        part = size // PART
        both = [(self._seconds(pairs, size), self._seconds(pairs, part)) for _ in range(READINGS)]
        whole, less = min(large for large, _ in both), min(small for _, small in both)
        # On a machine that is busy with other things a part may take as long as the whole.
        return max(whole - less, whole / 2) / (size - part)

    def toll(self) -> CommOverhead | None:
        """What talking takes of computing; a GPU has others do it, and a rank alone never talks."""
        if self._device.type == "cuda" or dist.get_world_size() < 2:
            return None
        return measure_comm_overhead(self._wire)

    def _added(self, pair: Pair) -> float:
        """What a round trip adds to computing; nothing to that of those who only compute."""
        alone = self._stints(lambda: None)
        talking = self._stints(lambda: self._round_trip(pair))
        self._wire.finish()
        return (talking - alone) / TRIPS if self._rank == pair[0] else 0.0

    def _stints(self, then: Callable[[], None]) -> float:
        """Seconds of computing and something after it, some times over."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(TRIPS):
            self._products.multiply(self._stint)
            then()
        self._wait()
        return time.perf_counter() - begin

    def _round_trip(self, pair: Pair) -> None:
        first, second = pair
        out, into = self._out[:4], self._into[:4]
        if self._rank == first:
            self._exchange([(second, out)], [(second, into)])
        elif self._rank == second:
            self._exchange([], [(first, into)])
            self._exchange([(first, out)], [])

    def _seconds(self, pairs: Pairs, size: int) -> float:
        """From the first start to the last end: what some rank took from one barrier to the next.
        A rank that wakes late only lengthens it. What arrives overwrites itself: nobody reads it.
        """
        targets = [target for source, target in pairs if source == self._rank]
        sources = [source for source, target in pairs if target == self._rank]
        parts = [min(MESSAGE, size - begin) for begin in range(0, size, MESSAGE)]
        sends = [(to, self._out[:part]) for part in parts for to in targets]
        receives = [(sender, self._into[:part]) for part in parts for sender in sources]
        dist.barrier()
        begin = time.perf_counter()
        self._exchange(sends, receives)
        self._wire.finish()
        dist.barrier()
        self._wait()
        return self._agreed(time.perf_counter() - begin)

    def _exchange(
        self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]
    ) -> None:
        self._wire.exchange(sends, receives)
        self._wait()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _agreed(self, value: float) -> float:
        """The largest value of any rank."""
        largest = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest.item())
