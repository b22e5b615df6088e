"""World-size check of a plan, and broadcast of the first rank's seed. Enters: a plan, and the
default process group. Leaves: nothing, or a sentence; and what the first rank tells all.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.plan.plan import Plan


def broadcast_seed(seed: int, device: torch.device) -> int:
    """The seed of the first rank, for all."""
    on = device if dist.get_backend() == "nccl" else torch.device("cpu")
    shared = torch.tensor([seed % (1 << 63)], dtype=torch.int64, device=on)
    dist.broadcast(shared, 0)
    return int(shared.item())


def refuse_other_world(plan: Plan) -> None:
    """Refuse a plan for another number of ranks than there are."""
    if not dist.is_initialized():
        raise InputError(
            "there is no process group",
            "start the script with torchrun and call torch.distributed.init_process_group first",
        )
    ranks, devices = dist.get_world_size(), plan.cluster.devices
    if ranks != devices:
        sizes = " x ".join(str(size) for size in plan.cluster.hierarchy)
        raise InputError(
            f"the plan is for {counted(devices, 'device')} ({sizes} of cluster "
            f"{plan.cluster.name!r}), and there are {counted(ranks, 'rank')}",
            f"start {counted(devices, 'rank')}, or plan for a cluster of {ranks}",
        )
