"""What ranks run in tests; they import it by name."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist


def summed_ranks() -> float:
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item()


def failing(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("out of paper")
    time.sleep(60)


def dying(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
