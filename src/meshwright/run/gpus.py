"""NCCL ranks that share a GPU. Enters: how many ranks, and how many a GPU takes. Leaves: how many
GPUs they need, and the environment of each rank; or a sentence why it cannot be.

NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"), and tells hosts apart by
NCCL_HOSTID. With an id of its own each rank looks like a node of one GPU, and all that travels goes
through NCCL's socket transport: NCCL's own collectives, groups, streams and order, at the speed of
a loopback. So a plan for a cluster can be tried on one GPU before anybody queues for the cluster.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshwright.foundation.errors import InputError
from meshwright.foundation.units import counted


def gpus_for(ranks: int, each: int) -> int:
    """How many GPUs so many ranks take with `each` on one."""
    if not torch.cuda.is_available():
        raise InputError(
            "there is no GPU on this machine that PyTorch can use",
            "leave --ranks-per-gpu out: ranks then run on CPUs with gloo",
        )
    if not dist.is_nccl_available():
        raise InputError(
            f"PyTorch {torch.__version__} comes without NCCL", "install a build with CUDA and NCCL"
        )
    needed, there = -(-ranks // each), torch.cuda.device_count()
    if needed > there:
        raise InputError(
            f"{counted(ranks, 'rank')} with {each} on a GPU need {counted(needed, 'GPU')}, and "
            f"this machine has {there}",
            f"give --ranks-per-gpu {-(-ranks // there)}",
        )
    return needed


def sharing_environment(rank: int, interface: str) -> dict[str, str]:
    """What a rank that shares its GPU tells NCCL before it starts.

    >>> sharing_environment(3, "lo")["NCCL_HOSTID"]
    'meshwright-rank-3'
    """
    return {
        "NCCL_HOSTID": f"meshwright-rank-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": interface,
    }


def device_of_rank() -> torch.device:
    """Where this rank computes: on its GPU if it talks through NCCL, else on the CPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
