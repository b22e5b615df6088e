"""Loops as PyTorch users write them on NCCL ranks: torch's own clipping, LAMB, groups, states."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.plan.options import Options
from meshwright.run.launch.ranks import Home, run_ranks
from support import loop_bodies as bodies
from support.loop_plans import plan_of, staged

pytestmark = pytest.mark.gpu

GPU = Home(gpus=1)

PLANS = {
    "dp 2": plan_of("sample"),
    "tp 2": plan_of("channel"),
    "zero 1": plan_of("sample", options=Options(zero=1)),
    "zero 2": plan_of("sample", options=Options(zero=2)),
    "zero 3": plan_of("sample", options=Options(zero=3)),
    "pp 2": staged(),
    "dp 2 x tp 2, zero 3": plan_of("sample", "channel", options=Options(zero=3)),
    "pp 2 x dp 2": staged("sample"),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_loops_are_those_of_one_device(ranks: int) -> None:
    plans = {name: plan for name, plan in PLANS.items() if plan.cluster.devices == ranks}
    expected = bodies.looped_alone()
    results: list[Any] = run_ranks(bodies.looped_on_device, plans, ranks=ranks, home=GPU)
    for outcomes in results:
        for name, outcome in outcomes.items():
            for loop, numbers in expected.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)
            assert all(outcome["states"].values()), (name, outcome["states"])
