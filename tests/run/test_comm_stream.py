"""The communication stream on a GPU that is only played: what is held, and until when.

`tests/gpu/test_streams.py` shows on a real GPU what happens otherwise.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.run.comm.comm_stream import CommStream

GPU = torch.device("cuda", 0)


class Event:
    """A point in a stream that is passed when a test says so."""

    def __init__(self) -> None:
        self.is_passed = False

    def query(self) -> bool:
        return self.is_passed


class Stream:
    """A stream that launches and never computes."""

    def __init__(self, _: torch.device | None = None) -> None:
        self.events: list[Event] = []
        self.waited: list[Event] = []

    def record_event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        for event in self.events:
            event.is_passed = True


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The computing stream of a GPU that is not there."""
    stream = Stream()

    def inside(_: Stream) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(Tensor, "record_stream", lambda own, reader: readers.append(reader))
    readers.clear()
    return stream


readers: list[object] = []
"""For whom results were recorded."""


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


def test_what_a_job_reads_is_held_while_its_kernels_run(computing: Stream) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    lane.begin(lambda: None)._ready.wait()
    assert read() is not None
    lane.close()


def test_it_is_let_go_once_its_event_has_passed(computing: Stream) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    events_of(lane)[0].is_passed = True
    lane.begin(lambda: None)._ready.wait()
    assert read() is None
    lane.close()


def test_it_is_let_go_once_the_computing_stream_waits_for_a_later_job(computing: Stream) -> None:
    lane = CommStream(GPU)
    read = given_to(lane)
    result = lane.begin(lambda: torch.zeros(2)).result()
    assert read() is None
    assert events_of(lane)[1] in computing.waited
    assert readers == [computing]
    assert result.shape == (2,)
    lane.close()
