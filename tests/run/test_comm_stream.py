"""The communication stream on a GPU that is only played: what is held, and until when.

`tests/gpu/test_streams.py` shows on a real GPU what happens otherwise.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.run.comm.comm_stream import CommStream
from support.played_gpu import GPU, Event, PlayedGPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGPU:
    return PlayedGPU(monkeypatch)


def events_of(lane: CommStream) -> list[Event]:
    """What the lane has recorded in its stream, in order."""
    stream: Any = lane._stream
    events: list[Event] = stream.events
    return events


def given_to(lane: CommStream) -> weakref.ref[Tensor]:
    """A tensor that only a job of the lane reads, once the job has been launched."""
    data = torch.ones(3)
    handle = lane.begin(lambda: data.sum())
    handle._ready.wait()
    return weakref.ref(data)


def test_what_a_job_reads_is_held_while_its_kernels_run(gpu: PlayedGPU) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    lane.begin(lambda: None)._ready.wait()
    assert read() is not None
    lane.close()


def test_it_is_let_go_once_its_event_has_passed(gpu: PlayedGPU) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    events_of(lane)[0].is_passed = True
    lane.begin(lambda: None)._ready.wait()
    assert read() is None
    lane.close()


def test_it_is_let_go_once_the_computing_stream_waits_for_a_later_job(gpu: PlayedGPU) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    result = lane.begin(lambda: torch.zeros(2)).result()
    assert read() is None
    assert events_of(lane)[1] in gpu.computing.waited
    assert gpu.readers == [gpu.computing]
    assert result.shape == (2,)
    lane.close()
