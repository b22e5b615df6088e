"""Ranks that fail in every way, for real: all others end, with one sentence."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from meshwright.run.health.watchdog import EXIT_CODE
from support import watch_bodies as bodies
from support.watched import exit_codes, last_words, outcome, started

pytestmark = [pytest.mark.ranks, pytest.mark.waits]


def without_seconds(
    outcomes: dict[tuple[int | None, str], list[int]],
) -> dict[tuple[int | None, str], list[int]]:
    return {
        (code, re.sub(r"\d+ s\b", "N s", said)): ranks for (code, said), ranks in outcomes.items()
    }


@pytest.mark.parametrize("bad", range(5))
def test_a_rank_that_dies(tmp_path: Path, bad: int) -> None:
    outcomes = outcome(bodies.goes_wrong, tmp_path, bad, "dies", 4, True, ranks=5)
    others = [rank for rank in range(5) if rank != bad]
    assert outcomes == {
        (-signal.SIGKILL, ""): [bad],
        (EXIT_CODE, f"rank {bad} died in step 4"): others,
    }


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raises", "rank 1 failed in step 2: KeyError: 'no paper in step 2'"),
        ("refuses", "rank 1 failed in step 2: the batch is 7; make it 8."),
        ("terminated", "rank 1 was told to end in step 2 (SIGTERM)"),
        ("sleeps", "rank 1 has made no progress in step 2 for N s"),
        ("spins", "rank 1 has made no progress in step 2 for N s"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_a_rank_that_goes_wrong(tmp_path: Path, kind: str, said: str, marked: bool) -> None:
    outcomes = outcome(bodies.goes_wrong, tmp_path, 1, kind, 2, marked, ranks=4)
    assert without_seconds(outcomes) == {(EXIT_CODE, said): [0, 1, 2, 3]}


def test_a_failing_rank_shows_where(tmp_path: Path) -> None:
    outcome(bodies.goes_wrong, tmp_path, 1, "raises", 2, True, ranks=2)
    assert "in misbehave" in (tmp_path / "1.err").read_text()
    assert "Traceback" not in (tmp_path / "0.err").read_text()


def test_what_looks_like_a_loss_waits_for_its_cause(tmp_path: Path) -> None:
    outcomes = outcome(bodies.hears_too_late, tmp_path, True, ranks=3)
    assert outcomes == {(EXIT_CODE, "rank 2 died in step 6"): [0, 1], (-signal.SIGKILL, ""): [2]}
    assert "Traceback" not in (tmp_path / "1.err").read_text()


def test_what_looks_like_a_loss_and_has_no_cause(tmp_path: Path) -> None:
    outcomes = outcome(bodies.hears_too_late, tmp_path, False, ranks=3)
    said = "rank 1 failed in step 6: RuntimeError: Connection closed by peer"
    assert outcomes == {(EXIT_CODE, said): [0, 1, 2]}


def test_a_stopped_rank_is_missed_and_ends_when_it_goes_on(tmp_path: Path) -> None:
    with started(bodies.goes_wrong, tmp_path, 3, "stops", 4, True, ranks=4) as processes:
        said = "rank 3 has not been heard of for N s, last in step 4"
        assert exit_codes(processes[:3]) == [EXIT_CODE] * 3
        assert processes[3].exitcode is None
        assert processes[3].pid is not None
        os.kill(processes[3].pid, signal.SIGCONT)
        assert exit_codes(processes[3:]) == [EXIT_CODE]
    words = [re.sub(r"\d+ s\b", "N s", last_words(tmp_path, rank)) for rank in range(4)]
    assert words == [said] * 4


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    said = (
        "no rank makes progress, each waits for another: furthest behind, "
        "rank 0 and 2 others have waited in step 7 for N s"
    )
    outcomes = outcome(bodies.in_a_circle, tmp_path, ranks=3)
    assert without_seconds(outcomes) == {(EXIT_CODE, said): [0, 1, 2]}


def test_a_dead_rank_whose_children_live(tmp_path: Path) -> None:
    outcomes = outcome(bodies.forks, tmp_path, 2, ranks=3)
    assert outcomes == {(-signal.SIGKILL, ""): [2], (EXIT_CODE, "rank 2 died in step 3"): [0, 1]}


def test_no_half_checkpoint(tmp_path: Path) -> None:
    outcomes = outcome(bodies.half_checkpoint, tmp_path, 1, ranks=3)
    assert outcomes[EXIT_CODE, "rank 1 died after step 0"] == [0, 2]
    written = {path.name for path in tmp_path.iterdir() if path.suffix != ".err"}
    # What the killed rank has left is never taken for whole.
    assert written - {".1.half.part"} == {"0.whole", "1.whole", "2.whole"}


@pytest.mark.parametrize("body", [bodies.at_different_times, bodies.slow_but_alive])
def test_no_false_alarm(tmp_path: Path, body: object) -> None:
    assert callable(body)
    assert outcome(body, tmp_path, ranks=4) == {(0, ""): [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("stopped", "limit"),
    [
        ((1,), 20.0),
        # As when a machine sleeps: nobody has missed anybody.
        ((0, 1, 2), 3.0),
    ],
)
def test_a_stop_is_forgiven(tmp_path: Path, stopped: tuple[int, ...], limit: float) -> None:
    with started(bodies.long_training, tmp_path, 40, 0.05, limit, ranks=3) as processes:
        while any(not (tmp_path / f"{rank}.step").exists() for rank in range(3)):
            time.sleep(0.05)
        pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in stopped]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert exit_codes(processes) == [0, 0, 0]


def test_a_rank_alone(tmp_path: Path) -> None:
    assert outcome(bodies.long_training, tmp_path, 3, 0.0, ranks=1) == {(0, ""): [0]}
    outcomes = outcome(bodies.goes_wrong, tmp_path, 0, "sleeps", 1, True, ranks=1)
    said = "rank 0 has made no progress in step 1 for N s"
    assert without_seconds(outcomes) == {(EXIT_CODE, said): [0]}


def test_the_rank_with_the_store_dies_before_all_have_joined(tmp_path: Path) -> None:
    outcomes = outcome(bodies.loses_the_first, tmp_path, signal.SIGKILL, ranks=3)
    said = "rank 0, which serves the store at which ranks meet, died before its first step"
    assert outcomes == {(-signal.SIGKILL, ""): [0], (EXIT_CODE, said): [1, 2]}


def test_the_rank_with_the_store_hangs_before_all_have_joined(tmp_path: Path) -> None:
    with started(bodies.loses_the_first, tmp_path, signal.SIGSTOP, ranks=3) as processes:
        assert exit_codes(processes[1:]) == [EXIT_CODE] * 2
    words = {last_words(tmp_path, rank) for rank in (1, 2)}
    assert words == {"rank 0, or what else serves the store at which ranks meet, does not answer"}


def test_a_rank_that_never_joins(tmp_path: Path) -> None:
    with started(bodies.comes_alone, tmp_path, 1, ranks=4) as processes:
        assert exit_codes([processes[rank] for rank in (0, 2, 3)]) == [EXIT_CODE] * 3
    words = {last_words(tmp_path, rank) for rank in (0, 2, 3)}
    assert words == {"rank 1 did not come before its first step"}


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("after", [0.0, 0.3, 0.7])
def test_a_rank_that_dies_while_ranks_join(tmp_path: Path, bad: int, after: float) -> None:
    with started(bodies.dies_while_joining, tmp_path, bad, after, ranks=4) as processes:
        others = [rank for rank in range(4) if rank != bad]
        assert exit_codes([processes[rank] for rank in others]) == [EXIT_CODE] * 3
    for rank in others:
        said = rf"rank {bad}\b.* (died|did not come) (before its first step|in step \d)"
        assert re.fullmatch(said, last_words(tmp_path, rank))


def test_another_number_of_ranks(tmp_path: Path) -> None:
    said = (
        "rank 2 was started as one of 5 ranks, rank 0 as one of 4; "
        "start all of them with the same WORLD_SIZE."
    )
    outcomes = outcome(bodies.miscounts, tmp_path, 2, ranks=4)
    assert outcomes == {(EXIT_CODE, said): [0, 1, 2, 3]}
