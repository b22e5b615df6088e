"""How long messages between real ranks take. Enters: a `Cluster`, on each rank of a process group
of as many. Leaves: what was `Found`, the same on every rank. Rank i is device i, row-major.

    seconds per byte = (seconds of a large message - seconds of a part of it) / difference in bytes

Latency, waiting for each other, and what buckets let through at once are in both and fall out.
Sizes are chosen by time, so that slow links do not take minutes and fast ones are well above the
grain of a clock. What the figures mean for links is told in `link_fit`.
"""

from __future__ import annotations

import math
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.foundation.units import Seconds
from meshwright.price.backend import BACKENDS
from meshwright.run.link_fit import Found, probes
from meshwright.run.probes import Pair, Pairs, firsts
from meshwright.run.wire import Wire

BUDGET = Seconds(15.0)
"""What all readings of rates together should take."""

LONG = Seconds(0.3)
"""How long one reading takes where the budget allows it."""

READINGS = 5
"""Of which the median counts."""

ROUNDS, PINGS = (10, 300), Seconds(0.5)
"""Fewest and most round trips of a small message, and how long they may take."""

FIRST, MESSAGE = 1 << 16, 1 << 23
"""Bytes that are tried first, and of the largest message."""

PART = 4
"""The smaller message is such a part of the larger."""

GROWTH = 8
"""By how much the size grows at once: what is small says little of what is large."""


def measure_links(
    cluster: Cluster, device: torch.device | None = None, budget: Seconds = BUDGET
) -> Found:
    """Measure what there is to measure; called by all ranks at once."""
    require_world(cluster, dist.get_world_size())
    meter = _Meter(device or torch.device("cpu"))
    latencies = tuple(None if pair is None else meter.latency(pair) for pair in firsts(cluster))
    wanted = probes(cluster)
    # Trying sizes takes about as long as three readings, and sizes grow beyond what they must.
    readings = 1.3 * (READINGS * (1 + 1 / PART) + 3)
    each = min(LONG, budget / (readings * max(1, len(wanted))))
    return Found(latencies, {pairs: meter.pace(pairs, each) for pairs in wanted})


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
        self._wire, self._rank, self._device = Wire(), dist.get_rank(), device
        self._out = torch.zeros(MESSAGE, dtype=torch.uint8, device=device)
        self._into = torch.zeros_like(self._out)

    def latency(self, pair: Pair) -> Seconds:
        """Median of half a round trip of a small message, less what starting one costs."""
        fewest, most = ROUNDS
        self._round_trips(pair, fewest)
        once = self._agreed(statistics.median(self._round_trips(pair, fewest)))
        rounds = min(max(fewest, int(PINGS / once)), most)
        half = self._agreed(statistics.median(self._round_trips(pair, rounds))) / 2
        library = BACKENDS.get(dist.get_backend())
        return Seconds(max(0.0, half - (library.launch if library else 0.0)))

    def pace(self, pairs: Pairs, each: float) -> float:
        """Seconds for a byte of each pair, all at once, from the medians of some readings."""
        size = FIRST
        self._seconds(pairs, size)
        # The better of two: what else a machine does only lengthens a reading.
        while (spent := min(self._seconds(pairs, size), self._seconds(pairs, size))) < each:
            size = math.ceil(size * min(max(1.3 * each / max(spent, 1e-9), 1.5), GROWTH))
        part = size // PART
        # One beside the other, so that what disturbs meets both.
        both = [(self._seconds(pairs, size), self._seconds(pairs, part)) for _ in range(READINGS)]
        whole = statistics.median(large for large, _ in both)
        less = statistics.median(small for _, small in both)
        # On a machine that is busy with other things a part may take as long as the whole.
        return max(whole - less, whole / 2) / (size - part)

    def _round_trips(self, pair: Pair, rounds: int) -> list[float]:
        """Seconds of each; nothing but zeros for those who only wait."""
        dist.barrier()
        first, second = pair
        out, into = self._out[:4], self._into[:4]
        found = [0.0] * rounds
        for number in range(rounds):
            begin = time.perf_counter()
            if self._rank == first:
                self._exchange([(second, out)], [(second, into)])
                found[number] = time.perf_counter() - begin
            elif self._rank == second:
                self._exchange([], [(first, into)])
                self._exchange([(first, out)], [])
        self._wire.finish()
        return found

    def _seconds(self, pairs: Pairs, size: int) -> float:
        """Until the last receiver has all. What arrives overwrites itself: nobody reads it."""
        targets = [target for source, target in pairs if source == self._rank]
        sources = [source for source, target in pairs if target == self._rank]
        parts = [min(MESSAGE, size - begin) for begin in range(0, size, MESSAGE)]
        sends = [(to, self._out[:part]) for part in parts for to in targets]
        receives = [(sender, self._into[:part]) for part in parts for sender in sources]
        dist.barrier()
        begin = time.perf_counter()
        self._exchange(sends, receives)
        spent = time.perf_counter() - begin if sources else 0.0
        self._wire.finish()
        return self._agreed(spent)

    def _exchange(
        self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]
    ) -> None:
        self._wire.exchange(sends, receives)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _agreed(self, value: float) -> float:
        """The largest value of any rank."""
        own = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(own, dist.ReduceOp.MAX)
        return float(own.item())
