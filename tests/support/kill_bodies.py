"""A model in training by a plan, for ranks of which one goes wrong."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright import parallelize
from meshwright.plan.plan import Plan
from meshwright.run.launch.gpus import device_of_rank
from support.module_bodies import batch_of, example_of
from support.watch_bodies import speak_to


def endless_training(folder: str, source: str, plan: Plan, wrong: int, at: int) -> None:
    """Train without end; in a step one rank gives a batch of another shape than the others.

    A file tells which step each rank is in.
    """
    rank = dist.get_rank()
    speak_to(folder, rank)
    example = example_of(source)
    batch = batch_of(example, plan.graph)
    noted = os.open(Path(folder) / f"{rank}.step", os.O_WRONLY | os.O_CREAT)
    with parallelize(example.model, plan, device=device_of_rank()) as model:
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        while True:
            number = model.executor.steps
            os.pwrite(noted, number.to_bytes(8, "big"), 0)
            inputs = [tensor[1:] for tensor in batch] if (rank, number) == (wrong, at) else batch
            optimizer.zero_grad()
            model.loss(*inputs).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
