"""Work in several processes: everything is done, and nothing hangs."""

from __future__ import annotations

import math
import os
import time

import pytest

from meshwright.base.processes import spread


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_every_item_is_worked_on_once(count: int, processes: int) -> None:
    roots = sorted(spread(math.sqrt, [n * n for n in range(count)], processes))
    assert roots == list(range(count))


def test_what_goes_wrong_there_goes_wrong_here() -> None:
    with pytest.raises(ValueError, match="math domain error"):
        list(spread(math.sqrt, [4.0, -1.0], 2))


def test_a_worker_that_dies_is_noticed() -> None:
    with pytest.raises(ChildProcessError, match="has ended before its work was done"):
        list(spread(os._exit, [1, 1], 2))


def test_leaving_early_waits_for_nobody() -> None:
    slow = spread(time.sleep, [0.0, 10_000.0], 2)
    assert next(slow) is None
    slow.close()
