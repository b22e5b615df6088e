"""NCCL ranks of which one is killed, stands still or disagrees: all others end, with a sentence."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kills import SOURCES, failure, plans
from meshwright.run.launch.gpus import MPS_FOLDER
from meshwright.run.launch.ranks import Home

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def take_turns(rank: int) -> None:
    """Without the multi-process service, which ends all its clients when one of them is killed."""
    os.environ[MPS_FOLDER] = "/nowhere"


@pytest.mark.parametrize("seed", range(6))
def test_all_others_end_and_name_the_rank(seed: int, tmp_path: Path) -> None:
    choices = [(source, plan) for source in SOURCES for plan in plans(source)]
    outcome = failure(random.Random(seed), choices, tmp_path, Home(gpus=1, enter=take_turns))
    assert outcome.as_stated, str(outcome)
