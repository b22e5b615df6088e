"""Collectives on real ranks, against their definitions, and what they send."""

from __future__ import annotations

import pytest

from meshwright.run.ranks import run_ranks
from support.wire_bodies import DTYPES, SIZES, every_collective, exchanged, sends_that_wait, strided

pytestmark = pytest.mark.ranks


def test_every_collective_does_what_it_says_and_sends_what_the_formula_says() -> None:
    groups = [(0, 1, 2, 3), (0, 2), (1, 3), (0, 1, 3), (2,)]
    each = len(DTYPES) * len(SIZES)
    assert run_ranks(every_collective, groups, ranks=4) == [3 * each, 3 * each, 3 * each, 3 * each]


def test_tensors_need_not_lie_in_one_row() -> None:
    run_ranks(strided, ranks=3)


def test_messages_between_two_ranks_keep_their_order() -> None:
    assert run_ranks(exchanged, ranks=3) == [4 * (2 * 70_005 + 12)] * 3


def test_sends_need_not_be_received_before_the_next_collective() -> None:
    assert run_ranks(sends_that_wait, ranks=2) == [2.0, 2.0]
