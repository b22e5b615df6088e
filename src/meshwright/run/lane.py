"""Talking while computing. Enters: jobs that talk to other ranks, in the same order on all ranks.
Leaves: handles of their results.

Jobs run one after the other in a thread of their own, on a GPU in a stream of their own. Since all
ranks have their jobs in one order, the first job that anybody has not done yet is always one that
all who take part come to: nobody waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Handle(Generic[Result]):
    """A result that may not be there yet."""

    def __init__(self, job: Callable[[], Result]) -> None:
        self._job: Callable[[], Result] | None = job
        self._ready = threading.Event()
        self._result: Result | None = None
        self._failure: BaseException | None = None
        self._arrived: torch.cuda.Event | None = None

    def result(self) -> Result:
        """The job's result, or what went wrong in it."""
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        if self._arrived is not None:
            torch.cuda.current_stream().wait_event(self._arrived)
        return self._result  # type: ignore[return-value]

    def perform(self, stream: torch.cuda.Stream | None) -> None:
        """Run the job; called once, by the lane."""
        assert self._job is not None
        try:
            if stream is None:
                self._result = self._job()
            else:
                with torch.cuda.stream(stream):
                    self._result = self._job()
                    self._arrived = stream.record_event()
        except BaseException as failure:
            self._failure = failure
        # What the job holds is not held any longer than it runs.
        self._job = None
        self._ready.set()


class Lane:
    """The thread; made once and closed at the end."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._queue: SimpleQueue[Handle[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="meshwright lane", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], Result]) -> Handle[Result]:
        """Have a job run after those before it."""
        if self._stream is not None:
            computed = torch.cuda.current_stream().record_event()
            job = _after(computed, job)
        handle = Handle(job)
        self._queue.put(handle)  # type: ignore[arg-type]
        return handle

    def close(self) -> None:
        """End the thread once all jobs are done."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        torch.set_grad_enabled(False)
        while (handle := self._queue.get()) is not None:
            handle.perform(self._stream)


def _after(computed: torch.cuda.Event, job: Callable[[], Result]) -> Callable[[], Result]:
    """A job that begins once what it reads is computed."""

    def waiting() -> Result:
        torch.cuda.current_stream().wait_event(computed)
        return job()

    return waiting
