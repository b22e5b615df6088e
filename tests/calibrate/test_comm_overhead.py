"""What talking takes of computing, measured; and whose turn it is."""

from __future__ import annotations

import os
from typing import cast

import pytest

from meshwright.cluster.cluster import CommOverhead
from meshwright.run.launch.ranks import run_ranks
from meshwright.run.launch.thread_affinity import pin_to_core_share, pin_to_one_core
from support.wire_bodies import core_of_this_rank, measured_toll, policies_of_gloo

pytestmark = pytest.mark.ranks


def test_talking_takes_some_of_computing() -> None:
    every = cast(list[CommOverhead], run_ranks(measured_toll, ranks=2))
    assert every[0] == every[1], "all ranks know the same"
    assert every[0].message < 1
    assert 1e3 < every[0].bandwidth < 1e12


def test_threads_of_gloo_preempt_nobody() -> None:
    for policies in run_ranks(policies_of_gloo, ranks=3):
        assert set(cast(list[int], policies)) == {os.SCHED_BATCH}


def test_ranks_with_less_than_two_cores_keep_to_one() -> None:
    ranks = os.cpu_count() or 1
    cores = cast(list[set[int]], run_ranks(core_of_this_rank, ranks=ranks))
    assert sorted(cores, key=min) == [{core} for core in sorted(os.sched_getaffinity(0))]


def test_who_has_cores_to_spare_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: chosen.append(set(cores)))
    for ranks in (4, 5, 16):
        pin_to_one_core(ranks - 1, ranks)
    assert chosen == [{6}, {7}]


def test_ranks_of_nccl_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: chosen.append(set(cores)))
    for rank in range(3):
        pin_to_core_share(rank, 3)
    pin_to_core_share(0, 16)
    assert chosen == [{0, 1}, {2, 3, 4}, {5, 6, 7}]
