"""Training under DistributedDataParallel by reduction programs, held against plain DDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.run.comm.programs import AnyReductionPlan
from meshwright.run.launch.ranks import Home, run_ranks
from support.machines import machine
from support.wire_bodies import trained

PROGRAMS = (
    "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; node.InsideGroup.AllGather",
    "node.InsideGroup.Reduce; node.Master(root).AllReduce; node.InsideGroup.Broadcast",
)


def require_plain_ddp(home: Home | None = None) -> None:
    """By every program four ranks have the gradients and parameters of plain DDP, all the same."""
    cluster = machine(2, 2)
    plans = [
        ReductionPlan.parse(f"sum over data of data=4 as [[2 2]] by {program}", cluster)
        for program in PROGRAMS
    ]
    require_as_plain_ddp(plans, 4, home)


def require_as_plain_ddp(
    plans: Sequence[AnyReductionPlan], ranks: int, home: Home | None = None
) -> None:
    """By every plan the ranks have the gradients and parameters of plain DDP, all the same."""
    by_rank = run_ranks(trained, [None, *plans], 5, ranks=ranks, home=home)
    results = cast(list[list[list[list[float]]]], by_rank)
    for plain, *ours in results:
        for hooked in ours:
            for expected, numbers in zip(plain, hooked, strict=True):
                assert len(numbers) == 40 * 60 + 60 + 60 * 30 + 30 + 30 + 1
                torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected))
    for rank in results[1:]:
        assert rank == results[0], "all ranks have the same gradients and parameters, to the bit"
