"""Ranks that compute beside the one that is measured."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from meshwright.calibrate.background_load import company
from meshwright.calibrate.profile_calls import calibrate
from meshwright.cost.profile_table import load_table
from meshwright.graph.operator_graph import Call, Spec

pytestmark = [pytest.mark.ranks, pytest.mark.alone]

VECTOR = Spec("float32", (1000,))
RELU = Call(kind="relu", inputs=(VECTOR,), outputs=(VECTOR,))
BROKEN = Call(kind="nosuch", inputs=(VECTOR,), outputs=())


def spent(process: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def others() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid is not None]


def test_the_others_compute_until_it_is_over() -> None:
    threads = torch.get_num_threads()
    with company(3) as accompany:
        assert torch.get_num_threads() == 1
        started = others()
        assert len(started) == 2
        for call in (RELU, BROKEN, RELU):
            accompany(call)
            time.sleep(0.1)
        before = [spent(one) for one in started]
        assert until(lambda: all(spent(p) > b + 0.3 for p, b in zip(started, before, strict=True)))
    assert others() == []
    assert torch.get_num_threads() == threads


def test_nobody_comes_unasked() -> None:
    with company(None) as accompany:
        accompany(RELU)
        assert others() == []
    with company(1) as accompany:
        accompany(RELU)
        assert others() == []


def test_the_table_tells_how_many_computed_at_once(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    with company(2) as accompany:
        calibrate(
            (RELU,),
            torch.device("cpu"),
            file,
            "meshwright calibrate",
            lambda done, total, call: accompany(call),
            ranks=2,
        )
    table = load_table(file)
    assert table.origin.software.endswith(", 1 threads, one of 2 ranks")
    assert [row.call for row in table.rows] == [RELU]
