"""Link calibration: bandwidths and latencies of a cluster's links, measured between ranks. Enters:
a `Cluster`, here or on ranks that torchrun started. Leaves: the cluster with what was measured, and
sentences about what it does not tell.

How messages are timed is told in `link_rates`, what that means for links in `link_fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.calibrate.link_fit import LinkMeasurements, contradictions, fitted
from meshwright.calibrate.link_rates import measure_links, require_world
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.toml import dump_cluster
from meshwright.run.health.consistency import digest
from meshwright.run.launch.ranks import run_ranks
from meshwright.run.launch.torchrun import together


class Calibrated(NamedTuple):
    """A cluster with measured links."""

    cluster: Cluster
    warnings: tuple[str, ...]


def calibrate_links_locally(cluster: Cluster, command: str) -> Calibrated:
    """Measure on ranks of this machine, which must be all of the cluster.

    `command` is what torchrun should be told to start, if it must be.
    """
    machines = machines_of(cluster)
    if machines > 1 or torch.cuda.is_available():
        many = f"cluster {cluster.name!r} is {machines} machines, and this is one of them"
        gpus = "ranks on GPUs are started by torchrun"
        start = torchrun_command(cluster)
        raise InputError(many if machines > 1 else gpus, f"on each machine give: {start} {command}")
    measurements = run_ranks(measure_links, cluster, ranks=cluster.devices)
    return _calibrated(cluster, cast("LinkMeasurements", measurements[0]), "gloo")


def calibrate_links_between_ranks(load: Callable[[], Cluster], device: torch.device) -> Calibrated:
    """Measure on the ranks of the default group; `load` reads the cluster on each."""

    def checked() -> Cluster:
        cluster = load()
        require_world(cluster, dist.get_world_size())
        return cluster

    cluster = together(checked)
    _refuse_different(cluster)
    return _calibrated(cluster, measure_links(cluster, device), dist.get_backend())


def machines_of(cluster: Cluster) -> int:
    """How many machines a cluster is.

    >>> machines_of(Cluster.named("summit")), machines_of(Cluster.named("laptop"))
    (4, 1)
    """
    if cluster.machine is None:
        return 1
    return math.prod(cluster.hierarchy[: cluster.level_index(cluster.machine) + 1])


def torchrun_command(cluster: Cluster) -> str:
    """How torchrun is started on each machine of a cluster.

    >>> torchrun_command(Cluster.named("laptop"))
    'torchrun --standalone --nproc-per-node 4 -m'
    """
    machines = machines_of(cluster)
    each = f"--nproc-per-node {cluster.devices // machines} -m"
    if machines == 1:
        return f"torchrun --standalone {each}"
    meeting = "--node-rank NUMBER --master-addr FIRST_MACHINE --master-port 29500"
    return f"torchrun --nnodes {machines} {meeting} {each}"


def _refuse_different(cluster: Cluster) -> None:
    """Ranks that measure different clusters would wait for each other for ever."""
    heard = [""] * dist.get_world_size()
    dist.all_gather_object(heard, digest(dump_cluster(cluster).encode()))
    for rank, other in enumerate(heard):
        if other != heard[0]:
            raise InputError(
                f"rank {rank} reads another cluster file than rank 0",
                "copy the same file to every machine",
            )


def _calibrated(cluster: Cluster, measurements: LinkMeasurements, backend: str) -> Calibrated:
    today, version = date.today().isoformat(), torch.__version__
    how = f"on {today} by {cluster.devices} ranks with {backend} (torch {version})"
    measured = fitted(cluster, measurements, how)
    return Calibrated(measured, tuple(contradictions(measured, measurements)))
