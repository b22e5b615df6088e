"""The communication stream: collectives beside computing. Enters: jobs that talk to other ranks, in
the same order on all ranks. Leaves: handles of their results.

Jobs run one after the other in a thread of their own, on a GPU in a stream of their own. Since all
ranks have their jobs in one order, the first job that anybody has not done yet is always one that
all who take part come to: nobody waits for ever.

On a GPU a job has only been launched when its function returns. PyTorch's allocator hands memory
out again in the stream it was allocated in, as soon as nothing in Python refers to it; what other
streams still do with it is for us to know:
- what a job reads was allocated by the computing stream: it is held until the job's event has
  passed, or until the computing stream waits for it, whatever comes first;
- what a job returns was allocated by this stream and is read by the computing one: it is recorded
  for the reader (`Tensor.record_stream`), and not handed out before the reader is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.quantities import Seconds

Result = TypeVar("Result")


class CommHandle(Generic[Result]):
    """A result that may not be there yet."""

    def __init__(self, job: Callable[[], Result], lane: CommStream) -> None:
        self._job: Callable[[], Result] | None = job
        self._lane = lane
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
            reader = torch.cuda.current_stream()
            reader.wait_event(self._arrived)
            self._lane.release(through=self)
            pytree.tree_map_only(Tensor, lambda tensor: tensor.record_stream(reader), self._result)
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
        if stream is None:
            self.forget()
        self._ready.set()

    def passed(self) -> bool:
        """Whether everything that the job launched is done."""
        return self._ready.is_set() and (self._arrived is None or self._arrived.query())  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Let go of what the job reads."""
        self._job = None


class CommStream:
    """The thread; made once and closed at the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._held: deque[CommHandle[object]] = deque()
        """Jobs whose kernels may still read what they were given, in their order."""
        self._queue: SimpleQueue[CommHandle[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="meshwright lane", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], Result]) -> CommHandle[Result]:
        """Have a job run after those before it."""
        handle: CommHandle[Result]
        if self._stream is None:
            handle = CommHandle(job, self)
        else:
            handle = CommHandle(_after(torch.cuda.current_stream().record_event(), job), self)
            while self._held and self._held[0].passed():
                self._held.popleft().forget()
            self._held.append(handle)  # type: ignore[arg-type]
        self._queue.put(handle)  # type: ignore[arg-type]
        return handle

    def release(self, *, through: CommHandle[Result]) -> None:
        """Let go of what jobs up to this one read: the computing stream waits for it now."""
        if through not in self._held:
            return
        first = None
        while first is not through:
            first = self._held.popleft()
            first.forget()

    def close(self, patience: Seconds | None = None) -> None:
        """End the thread once all jobs are done, or wait no longer than so."""
        self._queue.put(None)
        self._thread.join(patience)
        if self._stream is not None:
            self._stream.synchronize()
            self._held.clear()

    def _work(self) -> None:
        torch.set_grad_enabled(False)
        if self._stream is not None:
            torch.cuda.set_device(self._device)
        while (handle := self._queue.get()) is not None:
            handle.perform(self._stream)


def _after(computed: torch.cuda.Event, job: Callable[[], Result]) -> Callable[[], Result]:
    """A job that begins once what it reads is computed."""

    def waiting() -> Result:
        torch.cuda.current_stream().wait_event(computed)
        return job()

    return waiting
