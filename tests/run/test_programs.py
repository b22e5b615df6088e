"""Reduction programs on real ranks, against the sum."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from meshwright.cluster.cluster import Cluster
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.collectives.synthesize import synthesize
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.placement import placements
from support.machines import machine
from support.wire_bodies import plain_function, programs_sum, refused

ranks = pytest.mark.ranks


def plans(
    cluster: Cluster, axes: Mapping[str, int], over: Sequence[str], *, most: int = 10**9
) -> list[ReductionPlan]:
    """Every program of every placement, or a sample of them; devices may be idle."""
    candidates = [
        ReductionPlan(cluster=cluster, placement=placement, reduce=tuple(over), program=program)
        for placement in placements(cluster, axes, idle=True)
        for program in synthesize(Hierarchy(placement, cluster.level_names, over))
    ]
    return candidates if len(candidates) <= most else random.Random(7).sample(candidates, most)


@ranks
def test_every_program_of_two_nodes_of_four_sums() -> None:
    cluster = machine(2, 4)
    chosen = plans(cluster, {"data": 8}, ["data"])
    assert run_ranks(programs_sum, chosen, ranks=8) == [len(chosen)] * 8
    assert len(chosen) > 30


@ranks
def test_a_sample_of_three_levels_sums() -> None:
    cluster = machine(2, 2, 2)
    chosen = plans(cluster, {"data": 8}, ["data"], most=40)
    chosen += plans(cluster, {"data": 4, "tensor": 2}, ["data"], most=20)
    assert run_ranks(programs_sum, chosen, ranks=8) == [60] * 8


@ranks
def test_several_axes_and_idle_devices_and_groups_of_three_sum() -> None:
    cluster = machine(2, 3)
    chosen = plans(cluster, {"data": 6}, ["data"])
    chosen += plans(cluster, {"data": 2, "pipe": 3}, ["pipe"])
    chosen += plans(cluster, {"data": 2, "pipe": 3}, ["data", "pipe"], most=15)
    chosen += plans(cluster, {"data": 3}, ["data"])
    chosen += plans(cluster, {"data": 1, "tensor": 6}, ["data"])
    assert run_ranks(programs_sum, chosen, ranks=6) == [len(chosen)] * 6


@ranks
def test_the_public_function_does_what_torch_does() -> None:
    run_ranks(plain_function, ReductionPlan.chosen(machine(2, 2), bytes=1 << 20), ranks=4)


@ranks
def test_another_number_of_ranks_is_a_sentence() -> None:
    plan = ReductionPlan.chosen(machine(2, 2), bytes=1 << 20)
    assert run_ranks(refused, plan, ranks=2)[1] == (
        "the reduction plan is for 4 devices of cluster 'small', and there are 2 ranks; "
        "start 4 ranks, or choose a plan for a cluster of 2 devices."
    )


def test_no_process_group_is_a_sentence() -> None:
    plan = ReductionPlan.chosen(machine(2, 2), bytes=1 << 20)
    assert refused(plan) == (
        "there is no process group; call torch.distributed.init_process_group first."
    )
