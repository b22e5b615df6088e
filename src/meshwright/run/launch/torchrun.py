"""torchrun integration: process group, device and errors of a rank that torchrun started. Enters:
its environment. Leaves: this process in a group of all ranks, on its device, and mistakes that all
ranks hear of. It does not know what ranks do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.run.launch.gpus import require_nccl
from meshwright.run.launch.thread_affinity import pin_to_one_core

_T = TypeVar("_T")


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def local_world_size() -> int:
    """How many ranks this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def joined(backend: str | None = None) -> Iterator[torch.device]:
    """The group of all ranks for as long as it is entered.

    If nothing is said NCCL where there are GPUs, else gloo.
    """
    chosen = _backend(backend)
    device = torch.device("cpu")
    if chosen == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        pin_to_one_core(int(os.environ.get("LOCAL_RANK", "0")), local_world_size())
    dist.init_process_group(chosen, device_id=device if chosen == "nccl" else None)
    yield device
    # Who leaves first takes the store along, which the others may still need. After an error the
    # others may never come.
    dist.barrier()
    dist.destroy_process_group()


def _backend(backend: str | None) -> str:
    """Which library the ranks of this machine use; with NCCL each of them has a GPU."""
    if backend not in (None, "gloo", "nccl"):
        raise InputError(f"the backend of ranks is {backend!r}", "give gloo or nccl")
    if backend == "gloo" or (backend is None and not torch.cuda.is_available()):
        return "gloo"
    require_nccl()
    ranks, gpus = local_world_size(), torch.cuda.device_count()
    if gpus < ranks:
        raise InputError(
            f"{counted(ranks, 'rank')} of this machine need a GPU each, and PyTorch sees "
            f"{counted(gpus, 'GPU')}",
            f"start {gpus} on it (torchrun --nproc-per-node {gpus}), or hide the GPUs to run on "
            "CPUs with gloo (CUDA_VISIBLE_DEVICES= torchrun ...)",
        )
    return "nccl"


def together(action: Callable[[], _T]) -> _T:
    """What an action returns, once every rank has done its own.

    If the user made a mistake for any of them, all raise what the first of these has to say.
    """
    done: list[_T] = []
    mistake: tuple[str, str] | None = None
    try:
        done.append(action())
    except InputError as error:
        mistake = error.problem, error.remedy
    heard: list[tuple[str, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(heard, mistake)
    for said in heard:
        if said is not None:
            raise InputError(*said)
    return done[0]
