"""What ranks run on a testbed in tests; they import it by name."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from meshwright.run.launch.gpus import device_of_rank


def reduced(size: int) -> float:
    """An AllReduce of `size` bytes over all ranks."""
    total = torch.full((size // 4,), float(dist.get_rank()), device=device_of_rank())
    dist.all_reduce(total)
    return total[-1].item()


def reduced_in_runs(size: int, members: int) -> float:
    """An AllReduce of `size` bytes inside each run of consecutive ranks."""
    starts = range(0, dist.get_world_size(), members)
    groups = [dist.new_group(list(range(start, start + members))) for start in starts]
    group = groups[dist.get_rank() // members]
    total = torch.full((size // 4,), float(dist.get_rank()), device=device_of_rank())
    dist.all_reduce(total, group=group)
    return total[-1].item()


def rates(size: int, pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Bytes a second that this rank received, three times; all pairs send at once.

    The clock starts before the sender is told to begin, so that no byte is on its way yet.
    """
    data, go = torch.zeros(size // 4), torch.zeros(1)
    rank, speeds = dist.get_rank(), []
    for _ in range(3):
        dist.barrier()
        for source, target in pairs:
            if rank == source:
                dist.recv(go, target)
                dist.send(data, target)
            elif rank == target:
                start = time.monotonic()
                dist.send(go, source)
                dist.recv(data, source)
                speeds.append(size / (time.monotonic() - start))
    return speeds


def sleeping() -> None:
    time.sleep(120)
