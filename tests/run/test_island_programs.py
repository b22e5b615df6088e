"""Reduction programs over unequal groups on real ranks, against the sum and a plain all_reduce."""

from __future__ import annotations

import random

import pytest

from meshwright.cluster.island_cluster import IslandCluster
from meshwright.collectives.islands.island_reduction_plan import IslandReductionPlan
from meshwright.collectives.islands.island_synthesis import synthesize_islands
from meshwright.run.launch.ranks import run_ranks
from support.ddp_hooked import require_as_plain_ddp
from support.islands import island, machine_of
from support.wire_bodies import as_plain_all_reduce, programs_sum, refused

ranks = pytest.mark.ranks


def plans(cluster: IslandCluster, *, limit: int, most: int) -> list[IslandReductionPlan]:
    """Every program over the islands, or a sample of them."""
    programs = list(synthesize_islands(cluster, limit=limit))
    programs = programs if len(programs) <= most else random.Random(7).sample(programs, most)
    return [IslandReductionPlan(cluster=cluster, program=program) for program in programs]


@ranks
def test_every_program_of_two_and_one_sums() -> None:
    cluster = machine_of(island("big", 2), island("small", 1))
    chosen = plans(cluster, limit=5, most=1000)
    assert len(chosen) == 51
    assert run_ranks(programs_sum, chosen, ranks=3) == [len(chosen)] * 3
    assert run_ranks(as_plain_all_reduce, chosen, ranks=3) == [len(chosen)] * 3


@ranks
def test_programs_of_three_and_two_sum() -> None:
    cluster = machine_of(island("big", 3), island("small", 2))
    chosen = plans(cluster, limit=4, most=60)
    assert run_ranks(programs_sum, chosen, ranks=5) == [60] * 5
    assert run_ranks(as_plain_all_reduce, chosen[:20], ranks=5) == [20] * 5


@ranks
def test_programs_of_two_nodes_of_two_and_three_sum() -> None:
    cluster = machine_of(island("big", 2, 2), island("small", 3))
    chosen = plans(cluster, limit=5, most=40)
    assert run_ranks(programs_sum, chosen, ranks=7) == [40] * 7


@ranks
def test_training_under_ddp_is_that_of_plain_ddp() -> None:
    cluster = machine_of(island("big", 2), island("small", 1))
    scatter, gather = "root.InsideGroup.ReduceScatter", "root.InsideGroup.AllGather"
    require_as_plain_ddp(
        [
            IslandReductionPlan.parse(f"sum over 3 devices of big, small by {program}", cluster)
            for program in (
                f"[big: {scatter}]; across.AllReduce; [big: {gather}]",
                "[big: root.InsideGroup.Reduce]; leaders.Reduce; everybody.Broadcast",
            )
        ],
        3,
    )


@ranks
def test_a_plan_for_others_is_refused() -> None:
    cluster = machine_of(island("big", 2), island("small", 2))
    plan = IslandReductionPlan.chosen(cluster, bytes=1 << 20)
    for said in run_ranks(refused, plan, ranks=3):
        assert "is for 4 devices of cluster 'small', and there are 3 ranks" in str(said)
