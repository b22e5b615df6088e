"""A plain DDP script on a real two-level network, with AllReduce and with the chosen program.

    python benchmarks/ddp_hook.py [--model SOURCE] [--batch N] [--rounds N]
        [--backend nccl]

Needs root (`testbed`, 2x4: two nodes of four ranks, each node behind 200 Mb/s) and, for NCCL, a GPU
that the ranks share; NCCL chooses its algorithms itself then. Three ways to
average the gradients of one model take turns in one process group: DDP as it is, the hook with a
single AllReduce, the hook with the program that `ReductionPlan.chosen` picks; median and spread of
a step, of the slowest rank.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import NamedTuple, cast

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import meshwright
from meshwright.capture.load import load_example
from meshwright.capture.source.example import Example, Step
from meshwright.cluster.cluster import Cluster
from meshwright.collectives import dsl
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.run.launch.gpus import device_of_rank, gpus_for
from testbed import Testbed
from training_steps import prefer

CLUSTER = "testbed/clusters/2x4.toml"
MODEL = "zoo:resnet-50?image=64&stem=32&group_width=32&classes=100"
STEPS, WARM_UP = 2, 1
SHARING = {"NCCL_MAX_NCHANNELS": "2"}
"""Few channels, so that the ranks fit on a GPU together."""

Times = dict[str, list[float]]


class Asked(NamedTuple):
    """What every rank is told; a way without a plan is DDP's own."""

    model: str
    batch: int
    rounds: int
    ways: dict[str, ReductionPlan | None]


def trained(asked: Asked) -> Times:
    """Seconds of steps on this rank, by way."""
    models = {way: _parallel(asked, plan) for way, plan in asked.ways.items()}
    example = load_example(asked.model, asked.batch, device_of_rank())
    taken: Times = {way: [] for way in models}
    for _ in range(asked.rounds):
        for way, model in models.items():
            update = torch.optim.SGD(model.parameters(), 1e-3)
            taken[way] += [_seconds(model, update, example) for _ in range(STEPS + WARM_UP)][
                WARM_UP:
            ]
    return taken


def _parallel(asked: Asked, plan: ReductionPlan | None) -> DistributedDataParallel:
    torch.manual_seed(0)
    example = load_example(asked.model, asked.batch, device_of_rank())
    model = DistributedDataParallel(Step(example), broadcast_buffers=False)
    if plan is not None:
        meshwright.use_reduction_plan(model, plan)
    return model


def _seconds(
    model: DistributedDataParallel, update: torch.optim.Optimizer, example: Example
) -> float:
    dist.barrier()
    begin = time.perf_counter()
    update.zero_grad()
    torch.autograd.backward(model(example.inputs, {}, example.targets))
    update.step()
    if device_of_rank().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def slowest(ranks: list[Times]) -> Times:
    """Seconds of the slowest rank in each step, by way.

    >>> slowest([{"a": [1.0, 2.0]}, {"a": [3.0, 1.0]}])
    {'a': [3.0, 2.0]}
    """
    return {
        way: [max(each) for each in zip(*(rank[way] for rank in ranks), strict=True)]
        for way in ranks[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--batch", type=int, default=4, help="samples on each rank")
    parser.add_argument("--rounds", type=int, default=3, help="of two steps each way")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    arguments = parser.parse_args()
    on_gpu = arguments.backend == "nccl"
    if not on_gpu:
        prefer()
    cluster = Cluster.load(CLUSTER)
    model = load_example(arguments.model, arguments.batch, torch.device("cpu")).model
    size = sum(parameter.nbytes for parameter in model.parameters())
    chosen = ReductionPlan.chosen(cluster, bytes=size, backend="nccl" if on_gpu else "rings")
    single = msgspec.structs.replace(chosen, program=dsl.ALL_REDUCE)
    ways = {"DDP": None, "hook, AllReduce": single, "hook, chosen": chosen}
    with Testbed(cluster) as bed:
        ranks = bed.run(
            trained,
            Asked(arguments.model, arguments.batch, arguments.rounds, ways),
            gpus=gpus_for(cluster.devices, cluster.devices) if on_gpu else 0,
            environment=SHARING,
        )
    print(f"{arguments.model}, {arguments.batch} samples a rank, {size / 1e6:.1f} MB of gradients")
    print(f"chosen: {chosen.program}")
    taken = slowest(cast("list[Times]", ranks))
    plain = statistics.median(taken["DDP"])
    for way, seconds in taken.items():
        middle = statistics.median(seconds)
        print(
            f"{way} | {1e3 * middle:.0f} ms | {1e3 * min(seconds):.0f} to "
            f"{1e3 * max(seconds):.0f} | {plain / middle:.2f} times as fast as DDP"
        )
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
