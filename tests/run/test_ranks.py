"""Ranks on this machine."""

from __future__ import annotations

import pytest

from meshwright.base.quantities import Seconds
from meshwright.run.launch.ranks import RankError, run_ranks
from support.rank_bodies import dying, failing, summed_ranks

pytestmark = pytest.mark.ranks


def test_every_rank_returns() -> None:
    assert run_ranks(summed_ranks, ranks=4) == [6.0] * 4


def test_the_first_failure_is_told() -> None:
    with pytest.raises(RankError, match=r"rank 2 failed:(.|\n)*out of paper"):
        run_ranks(failing, 2, ranks=3)


def test_a_rank_that_dies_is_named() -> None:
    with pytest.raises(RankError, match=r"rank 1 failed:\nit died with exit code -9"):
        run_ranks(dying, 1, ranks=2)


def test_a_rank_that_hangs_is_ended() -> None:
    with pytest.raises(RankError, match=r"rank 0 failed:\nit did not end in time"):
        run_ranks(failing, 5, ranks=2, timeout=Seconds(3.0))
