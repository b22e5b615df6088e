"""Reduction programs as a hook of DistributedDataParallel, against plain DDP."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from meshwright.reduce.plan import ReductionPlan
from meshwright.run.ranks import run_ranks
from support.machines import machine
from support.wire_bodies import refused_hook, trained

pytestmark = pytest.mark.ranks

PROGRAMS = [
    "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; node.InsideGroup.AllGather",
    "node.InsideGroup.Reduce; node.Master(root).AllReduce; node.InsideGroup.Broadcast",
]


def test_training_is_that_of_plain_ddp() -> None:
    cluster = machine(2, 2)
    plans = [
        ReductionPlan.parse(f"sum over data of data=4 as [[2 2]] by {program}", cluster)
        for program in PROGRAMS
    ]
    results = cast(list[list[list[list[float]]]], run_ranks(trained, [None, *plans], 5, ranks=4))
    for plain, *ours in results:
        for own in ours:
            for expected, found in zip(plain, own, strict=True):
                assert len(found) == 40 * 60 + 60 + 60 * 30 + 30 + 30 + 1
                torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    for rank in results[1:]:
        assert rank == results[0], "all ranks have the same gradients and parameters, to the bit"


def test_a_plan_that_sums_over_other_ranks_is_a_sentence() -> None:
    plan = ReductionPlan.chosen(machine(2, 2), bytes=1024, axes={"data": 2}, matrix="[[2 1] [1 2]]")
    assert run_ranks(refused_hook, plan, ranks=4)[0] == (
        "the model is trained by ranks [0, 1, 2, 3] together, and the reduction plan sums over "
        "ranks [0, 1]; choose a plan for these ranks, or give the model a process group of those."
    )
