"""Rank-to-device mapping files: SLURM hostfile, Open MPI rankfile. Enters: for each rank the device
that a plan gives it, a cluster. Leaves: host files that put it there, and a check to run at start.

    hostfile        a host a rank: SLURM_HOSTFILE with --distribution=arbitrary, or mpirun
    rankfile        Open MPI's: the host and the slot of each rank
    check_ranks.py  every rank tells its host and its GPU; refuses another machine than the planned

Hosts are called node0, node1 ... until the user writes their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster


def machine_level(cluster: Cluster) -> int:
    """The outermost level inside a machine, by number."""
    return 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1


def gpus_of(cluster: Cluster) -> int:
    """Devices that share a machine."""
    return math.prod(level.cardinality for level in cluster.levels[machine_level(cluster) :])


def host_file(devices: Sequence[int], gpus: int) -> str:
    """The host of every rank, a line each.

    >>> host_file([0, 2, 1, 3], 2).split()
    ['node0', 'node1', 'node0', 'node1']
    """
    return "".join(f"node{device // gpus}\n" for device in devices)


def rank_file(devices: Sequence[int], gpus: int) -> str:
    """Open MPI's file of ranks."""
    return "".join(
        f"rank {rank}=node{device // gpus} slot={device % gpus}\n"
        for rank, device in enumerate(devices)
    )


CHECK = '''"""Whether the job runs where it was planned: {machine}.

torchrun --nnodes {hosts} --nproc_per_node {gpus} check_ranks.py, or under srun or mpirun as the job
itself. Needs torch only.
"""

import os
import socket

import torch
import torch.distributed as dist

HOST = {host_of!r}
"""For each rank the host that the plan puts it on, by number."""
MEMORY = {memory}
"""Bytes of a device that the plan was made for."""


def main():
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    device, gpu = torch.device("cuda", int(local)), torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    has = torch.cuda.get_device_properties(device).total_memory if gpu else MEMORY
    here = (os.environ.get("SLURM_NODEID") or socket.gethostname(), has)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, here)
    problems = []
    if len(found) != len(HOST):
        problems.append(f"there are {{len(found)}} ranks, and the plan is for {{len(HOST)}}")
    else:
        host = {{}}
        for rank, (name, has) in enumerate(found):
            planned = HOST[rank]
            if host.setdefault(planned, name) != name:
                problems.append(f"rank {{rank}} is on {{name}}, its peers on {{host[planned]}}")
            if has < MEMORY * 0.9:
                problems.append(f"rank {{rank}} has {{has}} bytes, and the plan needs {{MEMORY}}")
        if len(set(host.values())) != len(host):
            problems.append(f"{{len(host)}} hosts are planned, found {{len(set(host.values()))}}")
    if dist.get_rank() == 0:
        print("\\n".join(problems[:5]) or "ranks lie as planned")
    dist.destroy_process_group()
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
'''


def check_script(devices: Sequence[int], cluster: Cluster) -> str:
    """The check at start."""
    gpus = gpus_of(cluster)
    levels = " x ".join(f"{level.cardinality} {level.name}" for level in cluster.levels)
    return CHECK.format(
        machine=f"{cluster.name} ({levels})",
        hosts=cluster.devices // gpus,
        gpus=gpus,
        host_of=[device // gpus for device in devices],
        memory=int(cluster.device.memory),
    )
