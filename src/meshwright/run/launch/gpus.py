"""NCCL ranks on GPUs, several on one by NCCL_HOSTID and CUDA MPS. Enters: how many ranks, and how
many a GPU takes. Leaves: how many GPUs they need, and the environment of each rank; or a sentence
why it cannot be.

NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"), and tells hosts apart by
NCCL_HOSTID. With an id of its own each rank looks like a node of one GPU, and all that travels goes
through NCCL's socket transport: NCCL's own collectives, groups, streams and order, at the speed of
a loopback. So a plan for a cluster can be tried on one GPU before anybody queues for the cluster.
Processes take turns on a GPU, and a collective waits for the turn of each of its ranks: an
AllReduce of 256 B over 8 ranks took 204 ms on an H200. CUDA's multi-process service (MPS), where it
is installed, lets their kernels run side by side (0.8 and 2.8 ms in two sessions).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted

NCCL_SINCE = (2, 10)
"""The first NCCL that sums bfloat16 and knows NCCL_NET (its release notes, 2.10.3)."""


def require_nccl() -> None:
    """Refuse a machine on which ranks cannot use NCCL."""
    if not torch.cuda.is_available():
        raise InputError(
            "there is no GPU on this machine that PyTorch can use",
            "run on CPUs with gloo: leave --backend nccl or --ranks-per-gpu out",
        )
    if not dist.is_nccl_available():
        raise InputError(
            f"PyTorch {torch.__version__} comes without NCCL", "install a build with CUDA and NCCL"
        )
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if version[:2] < NCCL_SINCE:
        raise InputError(
            f"PyTorch {torch.__version__} runs NCCL {'.'.join(map(str, version[:3]))}, which is "
            "too old",
            f"install a build with NCCL {'.'.join(map(str, NCCL_SINCE))} or newer (2.28.9 was "
            "tried)",
        )


def gpus_for(ranks: int, each: int) -> int:
    """How many GPUs so many ranks take with `each` on one."""
    require_nccl()
    needed, gpus = -(-ranks // each), torch.cuda.device_count()
    if needed > gpus:
        raise InputError(
            f"{counted(ranks, 'rank')} with {each} on a GPU need {counted(needed, 'GPU')}, and "
            f"this machine has {gpus}",
            f"give --ranks-per-gpu {-(-ranks // gpus)}",
        )
    return needed


MPS = "nvidia-cuda-mps-control"
MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
"""Where a process finds the service; one that finds none there takes turns."""


@contextmanager
def mps_service() -> Iterator[None]:
    """Have ranks that are started inside share GPUs by CUDA's multi-process service.

    Where the service runs already, or is not installed, nothing is done.
    """
    if shutil.which(MPS) is None or MPS_FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-mps-") as folder:
        os.environ |= {MPS_FOLDER: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            subprocess.run([MPS, "-d"], check=False, capture_output=True)
            yield
        finally:
            subprocess.run([MPS], input=b"quit\n", check=False, capture_output=True)
            del os.environ[MPS_FOLDER], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def sharing_environment(rank: int) -> dict[str, str]:
    """What a rank that shares its GPU tells NCCL before it starts.

    >>> sharing_environment(3)
    {'NCCL_HOSTID': 'meshwright-rank-3', 'NCCL_NET': 'Socket'}
    """
    return {"NCCL_HOSTID": f"meshwright-rank-{rank}", "NCCL_NET": "Socket"}


def device_of_rank() -> torch.device:
    """Where this rank computes: on its GPU if it talks through NCCL, else on the CPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def placed(device: torch.device | str) -> torch.device:
    """A device with its number: of GPUs the current one, where none is said.

    >>> placed("cpu")
    device(type='cpu')
    """
    named = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if str(named) == "cuda" else named


def init_autograd_cuda_context(device: torch.device) -> None:
    """Give autograd's own thread a context of the GPU before a matrix product asks for one."""
    if device.type == "cuda":
        one = torch.ones((), device=device, requires_grad=True)
        torch.autograd.grad(one.mul(1.0), one)
