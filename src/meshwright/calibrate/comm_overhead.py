"""CPU overhead of communication (the o of LogP): what talking takes of computing. Enters: a wire,
on each rank of a process group. Leaves: a `CommOverhead`, the same on every rank.

While one thread multiplies matrices, another gathers what all ranks have, in a ring, as in a step
of training:
    lost(size) = (seconds until all is gathered - products · seconds of one undisturbed) / messages
Threads that wake up, copies, and caches that are no longer warm are all in it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from meshwright.base.quantities import BytesPerSecond, Seconds
from meshwright.calibrate.link_fit import rounded
from meshwright.cluster.cluster import CommOverhead
from meshwright.run.comm.communicator import Communicator

SMALL, LARGE = 1 << 12, 1 << 23
"""Bytes of messages; a large one may be less on a slow link."""

LONG = Seconds(0.02)
"""What one large message may take."""

TIMES, PAUSE = 15, Seconds(2e-3)
"""How often all is gathered in a reading, and how long computing goes on in between."""

READINGS = 7
"""Of which the median counts."""

MATRIX, UNDISTURBED = 192, Seconds(0.05)
"""Rows: a product takes about as long as a small operator; and how long some are timed."""

LEAST = 1e-12
"""Seconds of computing for a byte, where noise hides them."""


class Products:
    """Something to compute on a device."""

    def __init__(self, device: torch.device) -> None:
        self._own = torch.ones(MATRIX, MATRIX, device=device)

    def multiply(self, times: int = 1) -> None:
        """So many products."""
        for _ in range(times):
            torch.mm(self._own, self._own)

    def as_long_as(self, goes_on: Callable[[], bool]) -> Computed:
        """As many as there is time for."""
        done, begin = 0, time.perf_counter()
        while goes_on():
            self.multiply()
            done += 1
        return Computed(done, time.perf_counter() - begin)

    def seconds(self) -> float:
        """Of one, undisturbed."""
        begin = time.perf_counter()
        return self.as_long_as(lambda: time.perf_counter() - begin < UNDISTURBED).each


class Computed(NamedTuple):
    """Products that were computed."""

    products: int
    seconds: float

    @property
    def each(self) -> float:
        """Seconds of one."""
        return self.seconds / self.products


def measure_comm_overhead(wire: Communicator) -> CommOverhead:
    """Called by all ranks at once; this process has one thread for operators meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        large = _large(wire)
        both = [(_lost(wire, SMALL), _lost(wire, large)) for _ in range(READINGS)]
    finally:
        torch.set_num_threads(threads)
    message = max(0.0, _mean(statistics.median(small for small, _ in both)))
    whole = _mean(statistics.median(lost for _, lost in both))
    byte = max(LEAST, (whole - message) / (large - SMALL))
    return CommOverhead(
        message=Seconds(rounded(message)), bandwidth=BytesPerSecond(rounded(1 / byte))
    )


def _large(wire: Communicator) -> int:
    """Bytes of the largest message that does not take too long."""
    size = 2 * SMALL
    while size < LARGE:
        begin = time.perf_counter()
        _gathering(wire, 2 * size)()
        if _mean(time.perf_counter() - begin) > LONG:
            break
        size *= 2
    return size


def _lost(wire: Communicator, size: int) -> float:
    """Seconds of computing that a message takes."""
    gather = _gathering(wire, size)
    gather()
    products = Products(torch.device("cpu"))
    undisturbed = products.seconds()
    talking = threading.Thread(target=_talk, args=(gather,))
    dist.barrier()
    talking.start()
    beside = products.as_long_as(talking.is_alive)
    lost = beside.seconds - beside.products * undisturbed
    return lost / (TIMES * (dist.get_world_size() - 1))


def _talk(gather: Callable[[], None]) -> None:
    for _ in range(TIMES):
        gather()
        time.sleep(PAUSE)


def _gathering(wire: Communicator, size: int) -> Callable[[], None]:
    """What gathers so many bytes from each rank."""
    ranks = dist.get_world_size()
    buffer = torch.zeros(size, dtype=torch.uint8)

    def gather() -> None:
        wire.all_gather(buffer, [size] * ranks, tuple(range(ranks)))

    return gather


def _mean(value: float) -> float:
    """Over all ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.item()) / dist.get_world_size()
