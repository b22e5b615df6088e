"""Collectives and reduction programs of NCCL ranks on one GPU, against their definitions."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.collectives.synthesize import synthesize
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.sharding.placement import placements
from support.ddp_hooked import require_plain_ddp
from support.machines import machine
from support.wire_bodies import DTYPES, SIZES, every_collective, exchanged, programs_sum

pytestmark = pytest.mark.gpu

GPU = Home(gpus=1)


def test_every_collective_does_what_it_says_and_sends_what_the_formula_says() -> None:
    groups = [(0, 1, 2, 3), (0, 2), (2,), (0, 1, 3)]
    each = len(DTYPES) * len(SIZES)
    counts = run_ranks(every_collective, groups, ranks=4, home=GPU)
    assert counts == [3 * each, 2 * each, 3 * each, 2 * each]


def test_everybody_sends_to_everybody() -> None:
    assert len(run_ranks(exchanged, ranks=4, home=GPU)) == 4


@pytest.mark.parametrize(
    ("sizes", "axes", "over"),
    [
        ((2, 4), {"data": 8}, ["data"]),
        ((2, 2, 2), {"data": 4, "tensor": 2}, ["data"]),
        ((2, 2), {"data": 4}, ["data"]),
    ],
)
def test_programs_sum(sizes: tuple[int, ...], axes: Mapping[str, int], over: list[str]) -> None:
    cluster = machine(*sizes)
    plans = [
        ReductionPlan(cluster=cluster, placement=placement, reduce=tuple(over), program=program)
        for placement in placements(cluster, axes)
        for program in synthesize(Hierarchy(placement, cluster.level_names, over))
    ]
    chosen = random.Random(7).sample(plans, min(len(plans), 30))
    counts = run_ranks(programs_sum, chosen, ranks=cluster.devices, home=GPU)
    assert counts == [len(chosen)] * cluster.devices


def test_the_hook_of_ddp_trains_as_plain_ddp() -> None:
    require_plain_ddp(GPU)
