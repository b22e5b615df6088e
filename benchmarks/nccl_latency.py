"""What NCCL ranks that share one GPU take for an AllReduce by themselves, over the loopback.

    PYTHONPATH=.:src python benchmarks/nccl_latency.py [RANKS ...]

Without CUDA's multi-process service (MPS) the processes of a GPU take turns, and a message through
several of them waits for the turn of each. `gpu_session.sh` runs this with it and without.
Printed: medians, by ranks and bytes.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import cast

import torch

from meshwright.base.quantities import Seconds
from meshwright.run.comm.communicator import Communicator
from meshwright.run.launch.ranks import Home, run_ranks
from p2_testbed_cases import nccl_environment
from p2_testbed_ranks import Clock
from testbed.bed import told

SIZES = (256, 2 << 20)
REPETITIONS = 15


def times(ranks: int) -> list[float]:
    """Seconds for each size."""
    clock, wire, medians = Clock(), Communicator(), []
    for size in SIZES:
        data = torch.zeros(size // 4, device=clock.device)
        work = partial(wire.all_reduce, data, tuple(range(ranks)))
        clock.timed(work)
        medians.append(statistics.median(clock.timed(work) for _ in range(REPETITIONS)))
    return medians


def main() -> None:
    """Measure and print."""
    for ranks in [int(word) for word in sys.argv[1:]] or [2, 4, 8]:
        home = Home(gpus=1, enter=partial(told, nccl_environment("ring")))
        results = run_ranks(times, ranks, ranks=ranks, home=home, timeout=Seconds(60.0))
        cells = zip(SIZES, cast("list[float]", results[0]), strict=True)
        print(f"{ranks} ranks:", ", ".join(f"{1e3 * s:.2f} ms for {n} B" for n, s in cells))


if __name__ == "__main__":
    main()
