"""Checkpoints of NCCL ranks go on under other plans on gloo ranks, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from meshwright.base.quantities import Bytes
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import Home, run_ranks
from support.executed import Arrays
from support.state_bodies import Saved, Subject, goes_on, random_plan, subject, trains_and_saves

pytestmark = pytest.mark.gpu

GPU, CPU = Home(gpus=1), Home()


def plan_of(model: Subject, ranks: int, seed: int) -> Plan:
    return random_plan(
        model, ranks, seed, Options(zero=seed % 4, bucket=Bytes((0, 10**6)[seed % 2]))
    )


def equal(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def close(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[k], other[k], 1e-9) for k in one)


@pytest.mark.parametrize(("first", "then"), [(GPU, CPU), (CPU, GPU), (GPU, GPU)])
@pytest.mark.parametrize("seeds", [(2, 3), (1, 5), (4, 7)])
def test_training_goes_on_elsewhere(
    first: Home, then: Home, seeds: tuple[int, int], tmp_path: Path
) -> None:
    model, path = subject("bert-large"), str(tmp_path / "saved")
    four, two = plan_of(model, 4, seeds[0]), plan_of(model, 2, seeds[1])
    written = run_ranks(trains_and_saves, four, model, path, "sgd", ranks=4, home=first)
    before, after = cast(tuple[Saved, Saved], written[0])
    read = run_ranks(goes_on, two, model, path, "sgd", ranks=2, home=then)
    restored, later = cast(tuple[Saved, Saved], read[0])
    assert equal(restored.state, before.state)
    assert equal(restored.optimizer, before.optimizer)
    assert close(later.state, after.state)
