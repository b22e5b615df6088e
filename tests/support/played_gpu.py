"""A GPU that is only played: streams that launch and never compute, and their events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

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


class PlayedGPU:
    """A GPU with a computing stream, which is current wherever no other one is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computing = Stream()
        self.readers: list[object] = []
        """For whom tensors were recorded."""
        self._own = threading.local()
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", self._inside)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(Tensor, "record_stream", lambda _, reader: self.readers.append(reader))

    def current(self) -> Stream:
        """The stream in which this thread launches."""
        stream: Stream = getattr(self._own, "stream", self.computing)
        return stream

    @contextmanager
    def _inside(self, stream: Stream) -> Iterator[None]:
        before, self._own.stream = self.current(), stream
        yield
        self._own.stream = before
