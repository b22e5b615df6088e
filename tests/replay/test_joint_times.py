"""The rows of `benchmarks/joint_times.py`, planned, explained and followed byte by byte as before.

Searches here end by themselves, or after few proposals, never by the clock.
"""

from __future__ import annotations

import re

import pytest

from joint_cases import question_of
from joint_times import Goal, goals
from replay.golden import compare
from replay.record import replayed

PROPOSALS = 50

pytestmark = pytest.mark.replay


@pytest.mark.parametrize("goal", [*goals()], ids=lambda goal: goal.name)
def test_as_before(goal: Goal) -> None:
    name = re.sub(r"[^\w-]+", "_", goal.name).lower()
    compare(f"joint_times/{name}", replayed(question_of(goal.case), PROPOSALS))
