"""What a budget of time is used for: what is kept of it, rounds until it ends, what found what."""

from __future__ import annotations

import time

import pytest

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.search.budget import Budget
from meshwright.search.joint import planner
from meshwright.search.joint.phases import SearchPhases
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.clock import Clock
from support.baseline_graphs import convolutional

QUESTION = PlanRequest(
    graph=convolutional(),
    cluster=Cluster.named("flexflow-p100", node=2, gpu=2),
    memory=Bytes(1 << 40),
)


def test_a_share_of_the_time_is_kept_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moments[-1])
    clock = Clock(Budget(seconds=Seconds(10)), 0.1)
    late = clock.hurry(0.5)
    for moment, expected in (
        (104.0, (5.0, 0.4, False, False, False)),
        (104.5, (4.5, 0.45, True, False, False)),
        (109.0, (0.0, 0.9, True, True, False)),
        (110.0, (-1.0, 1.0, True, True, True)),
    ):
        moments.append(moment)
        assert (clock.left, clock.used, late(), clock.enough(), clock.over()) == expected
    assert not Clock(Budget(proposals=1), 0.1).over()


def test_time_that_is_left_is_used_with_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there is any, and something new turns up; proposals leave none."""
    seeds: list[int] = []

    def walk(self: SearchPhases, begun: list[object], again: int = 0) -> None:
        seeds.append(again)

    monkeypatch.setattr(SearchPhases, "walk", walk)
    monkeypatch.setattr(SearchPhases, "phases", lambda *_: None)
    monkeypatch.setattr(planner, "_fixed", lambda *_: None)
    monkeypatch.setattr(planner, "perturb_plan", lambda *_: None)
    best_plan(QUESTION, Budget(proposals=20), rewrites=False)
    assert not seeds
    outcome = best_plan(QUESTION, Budget(seconds=Seconds(1000)), rewrites=False)
    assert outcome.stopped == "complete"
    assert seeds[: planner.IDLE] == list(range(1, planner.IDLE + 1))


def test_the_history_says_which_phase_found_what() -> None:
    outcome = best_plan(QUESTION, Budget(proposals=20), rewrites=False)
    assert outcome.history[0].phase == "baselines"
    assert {entry.phase for entry in outcome.history} > {"baselines"}
    steps = [entry.step for entry in outcome.history]
    assert steps == sorted(steps, reverse=True)
