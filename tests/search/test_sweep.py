"""Sweeps: every task once, in order, on processes and on Ray; what goes wrong is told."""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.search.sweep import Failed, Where, sweep


def halved(number: int) -> float:
    """Work that takes longer for the first tasks, so that the last are finished first."""
    if number == 3:
        raise InputError("3 is odd", "give an even number")
    time.sleep(0.2 if number == 0 else 0.0)
    return number / 2


EXPECTED = (
    (0, 0.0), (1, 0.5), (2, 1.0), (3, Failed("3", "3 is odd; give an even number.")), (4, 2.0),
)  # fmt: skip


@pytest.mark.parametrize("cores", [None, 1, 2, 9])
def test_results_stand_in_the_order_of_tasks(cores: int | None) -> None:
    reports: list[tuple[int, object]] = []
    outcome = sweep(range(5), halved, cores=cores, progress=lambda *one: reports.append(one))
    assert (outcome.results, outcome.stopped) == (EXPECTED, "complete")
    assert sorted(reports, key=lambda one: one[0]) == list(EXPECTED)


@pytest.mark.parametrize("cores", [1, 2])
def test_our_own_mistake_is_told_too(cores: int) -> None:
    outcome = sweep([4.0, -1.0], math.sqrt, cores=cores)
    assert outcome.results == (
        (4.0, 2.0),
        (-1.0, Failed("-1.0", "ValueError: math domain error")),
    )


@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupt_leaves_what_is_finished(cores: int) -> None:
    def interrupt(task: float, result: object) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    outcome = sweep([0.0, 0.0, 10_000.0], time.sleep, cores=cores, progress=interrupt)
    assert outcome.stopped == "interrupted"
    assert len(outcome.results) == 1
    assert time.monotonic() - began < 1000, "nobody waits for the slow one"


def test_a_lost_worker_leaves_what_is_finished() -> None:
    outcome = sweep([1, 1], os._exit, cores=2)
    assert (outcome.results, outcome.stopped) == ((), "lost")


def test_no_task_and_no_such_place() -> None:
    assert sweep([], halved).results == ()
    with pytest.raises(InputError, match="the place to run is 'cloud'; known: 'local', 'ray'"):
        sweep([1], halved, where="cloud")  # type: ignore[arg-type]


class RayError(Exception):
    """As Ray's own."""


class FakeRay(ModuleType):
    """As much of Ray as a sweep needs; what was handed over last is done first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, joined: bool = False) -> None:
        super().__init__("ray")
        self.joined, self.most, self.cancelled = joined, 0, 0
        self.told: dict[str, object] = {}

    def is_initialized(self) -> bool:
        return self.joined

    def init(self, **arguments: object) -> None:
        self.told = arguments
        self.joined = True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def remote(self, **_: object) -> Callable[[Callable[..., Any]], Any]:
        def made(function: Callable[..., Any]) -> Any:
            assert inspect.isfunction(function), "Ray takes nothing else"
            return SimpleNamespace(remote=lambda *arguments: (function, *arguments))

        return made

    def wait(self, busy: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(busy))
        return busy[-1:], busy[:-1]

    def get(self, one: Any) -> Any:
        function, work, task = one
        if task[1] == "crash":
            raise RayError("the node is gone")
        return function(work, task)

    def cancel(self, one: Any, force: bool) -> None:
        self.cancelled += 1

    def shutdown(self) -> None:
        self.joined = False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.parametrize(("cores", "most"), [(None, 3), (1, 1), (2, 2)])
def test_ray_gives_the_same_results(fake: FakeRay, cores: int | None, most: int) -> None:
    outcome = sweep(range(5), halved, where="ray", cores=cores)
    assert (outcome.results, outcome.stopped) == (EXPECTED, "complete")
    assert (fake.most, fake.cancelled, fake.joined) == (most, 0, False)


def test_ray_is_left_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(joined=True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert sweep(range(5), halved, where="ray").results == EXPECTED
    assert (ray.joined, ray.told) == (True, {})


def test_a_cluster_that_is_named_is_joined(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    sweep(range(5), halved, where="ray", cores=2)
    assert fake.told["address"] == "head:6379"
    assert "num_cpus" not in fake.told


def test_an_interrupt_ends_what_runs_on_ray(fake: FakeRay) -> None:
    def interrupt(task: int, result: object) -> None:
        raise KeyboardInterrupt

    outcome = sweep(range(5), halved, where="ray", cores=2, progress=interrupt)
    assert (len(outcome.results), outcome.stopped) == (1, "interrupted")
    assert (fake.cancelled, fake.joined) == (1, False)


def test_a_lost_ray_task_leaves_what_is_finished(fake: FakeRay) -> None:
    outcome = sweep(["a", "crash", "b"], str.upper, where="ray", cores=1)
    assert (outcome.results, outcome.stopped) == ((("a", "A"),), "lost")


def test_ray_is_asked_for_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert sweep(range(5), halved, cores=1).results == EXPECTED
    with pytest.raises(InputError, match=r"not installed; install it with: .*meshwright\[ray\]"):
        sweep([1], halved, where="ray")


@pytest.fixture
def real() -> Any:
    return pytest.importorskip("ray")


@pytest.mark.parametrize("where", ["local", "ray"])
def test_a_real_cluster_gives_the_same_results(real: Any, where: Where) -> None:
    assert sweep(range(5), halved, where=where, cores=2).results == EXPECTED
    assert not real.is_initialized()


def test_a_real_worker_that_dies_ends_the_sweep(real: Any) -> None:
    outcome = sweep([1, 1], os._exit, where="ray", cores=2)
    assert (outcome.results, outcome.stopped) == ((), "lost")


def test_an_interrupt_ends_what_runs_on_a_real_cluster(real: Any) -> None:
    def interrupt(task: float, result: object) -> None:
        raise KeyboardInterrupt

    outcome = sweep([0.0, 10_000.0], time.sleep, where="ray", cores=2, progress=interrupt)
    assert (outcome.results, outcome.stopped) == (((0.0, None),), "interrupted")
    assert not real.is_initialized()
