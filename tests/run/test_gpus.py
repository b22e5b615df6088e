"""Ranks that share a GPU: the service that joins them, played by a program that notes its calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwright.run.launch.gpus import MPS, MPS_FOLDER, sharing_service


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the service was told."""
    note, program = tmp_path / "note", tmp_path / MPS
    program.write_text(
        f"#!/bin/sh\necho $@ ${{{MPS_FOLDER}:+x}} >> {note}\n[ $# = 0 ] && cat >> {note}\ntrue\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(MPS_FOLDER, raising=False)
    return note


def test_the_service_runs_as_long_as_ranks_do(noted: Path) -> None:
    with sharing_service():
        assert Path(os.environ[MPS_FOLDER]).is_dir()
        assert noted.read_text().split() == ["-d", "x"]
    assert MPS_FOLDER not in os.environ
    assert noted.read_text().split() == ["-d", "x", "x", "quit"]


def test_a_service_that_runs_already_is_left_alone(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS_FOLDER, "/somewhere")
    with sharing_service():
        assert os.environ[MPS_FOLDER] == "/somewhere"
    assert not noted.exists()
