"""Collectives on real ranks, against their definitions, and what they send."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import cast

import pytest

from meshwright.base.quantities import Seconds
from meshwright.run.launch.ranks import run_ranks
from support.wire_bodies import (
    DTYPES,
    HEADER,
    SIZES,
    every_collective,
    exchanged,
    holders_of_the_default_group,
    paired,
    sends_that_wait,
    strided,
    summed_in_groups,
    two_threads,
    written_bytes,
)

pytestmark = pytest.mark.ranks


def test_every_collective_does_what_it_says_and_sends_what_the_formula_says() -> None:
    groups = [(0, 1, 2, 3), (0, 2), (2,), (0, 1, 3)]
    each = len(DTYPES) * len(SIZES)
    assert run_ranks(every_collective, groups, ranks=4) == [3 * each, 2 * each, 3 * each, 2 * each]


def test_members_may_be_in_different_numbers_of_groups() -> None:
    """Such groups hang if they are made by `new_group` with local synchronisation."""
    groups = [(0, 1), (0, 1, 2), (0, 2)]
    summed = run_ranks(summed_in_groups, groups, ranks=3, timeout=Seconds(120.0))
    assert summed == [[1, 3, 2], [1, 3], [3, 2]]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel does not count")
def test_the_kernel_counts_what_the_wire_counts() -> None:
    """What a rank hands to the kernel beyond its payload are whole headers of messages."""
    counts = cast(list[list[tuple[int, int]]], run_ranks(written_bytes, ranks=3))
    for payload, beyond in chain.from_iterable(counts):
        assert payload > 0
        assert beyond >= 0
        assert beyond % HEADER == 0


def test_tensors_need_not_lie_in_one_row() -> None:
    run_ranks(strided, ranks=3)


def test_complex_numbers_travel_as_pairs() -> None:
    run_ranks(paired, ranks=3)


def test_wires_of_two_threads_do_not_mix() -> None:
    """The sum of 4 ones is scattered and summed again: 16, and twice that where the pair sums."""
    results = run_ranks(two_threads, ranks=4)
    assert results == [[32.0, 64.0], [32.0, 64.0], [16.0, 32.0], [16.0, 32.0]]


def test_messages_between_two_ranks_keep_their_order() -> None:
    assert run_ranks(exchanged, ranks=3) == [4 * (2 * 70_005 + 12)] * 3


def test_sends_need_not_be_received_before_the_next_collective() -> None:
    assert run_ranks(sends_that_wait, ranks=2) == [2.0, 2.0]


def test_a_wire_does_not_keep_the_default_group() -> None:
    """Whose threads must end with `destroy_process_group`, not with Python."""
    assert run_ranks(holders_of_the_default_group, ranks=2) == [0, 0]
