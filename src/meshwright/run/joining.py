"""Ranks that torchrun started. Enters: its environment. Leaves: this process in a group of all
ranks, on its device, and complaints that every rank hears. It does not know what ranks do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from meshwright.foundation.errors import InputError


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def joined() -> Iterator[torch.device]:
    """The group of all ranks for as long as it is entered: NCCL where each has a GPU, else gloo."""
    here, place = (int(os.environ.get(k, d)) for k, d in (("LOCAL_WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= here
    device = torch.device("cuda", place) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    try:
        yield device
    finally:
        # Who leaves first takes the store along, which the others may still need.
        dist.barrier()
        dist.destroy_process_group()


def first_complaint(own: InputError | None) -> InputError | None:
    """What the first rank that has one complains of; the same on every rank."""
    heard: list[InputError | None] = [None] * dist.get_world_size()
    said = None if own is None else (own.problem, own.remedy)
    told: list[tuple[str, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, said)
    heard = [None if words is None else InputError(*words) for words in told]
    return next((complaint for complaint in heard if complaint is not None), None)
