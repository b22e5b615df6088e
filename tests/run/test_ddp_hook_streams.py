"""The hook of DistributedDataParallel on a GPU that is only played: in which stream a program runs,
who waits for whom, and what is held until when.
"""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.run.comm import ddp_hook
from meshwright.run.comm.programs import Reducer
from support.played_gpu import GPU, Event, PlayedGPU, Stream


class Promise:
    """A future as PyTorch's on GPUs: it records an event in the stream that keeps it."""

    gpu: PlayedGPU

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices, self.kept = devices, threading.Event()
        self.result: Tensor | None = None
        self.arrived: Event | None = None

    def set_result(self, result: Tensor) -> None:
        self.arrived = self.gpu.current().record_event()
        self.result = result
        self.kept.set()


class Program:
    """A program that doubles, and notes in which stream it did."""

    def __init__(self, gpu: PlayedGPU) -> None:
        self._gpu = gpu
        self.streams: list[Stream] = []

    def all_reduce(self, data: Tensor) -> None:
        self.streams.append(self._gpu.current())
        data.mul_(2)


class Hook:
    """A hook of two ranks with its program."""

    def __init__(self, gpu: PlayedGPU) -> None:
        self.program = Program(gpu)
        self.state = ddp_hook._State(cast(Reducer, self.program), 2, GPU)

    def begin(self, data: Tensor) -> Promise:
        """The promise of a bucket, once all kernels are launched."""
        promise = cast(Promise, self.state.begin(data))
        assert promise.kept.wait(10)
        self.state._lane.begin(lambda: None)._ready.wait()
        return promise

    @property
    def stream(self) -> Stream:
        lane_stream: Any = self.state._lane._stream
        assert isinstance(lane_stream, Stream)
        return lane_stream


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGPU:
    played = PlayedGPU(monkeypatch)
    monkeypatch.setattr(Promise, "gpu", played, raising=False)
    monkeypatch.setattr(ddp_hook, "Future", Promise)
    return played


def test_a_program_runs_beside_the_backward_pass(gpu: PlayedGPU) -> None:
    hook = Hook(gpu)
    promise = hook.begin(torch.full((3,), 4.0))
    assert promise.devices == [GPU]
    assert promise.result is not None
    assert promise.result.tolist() == [4.0] * 3
    # It begins after what computed the bucket, in a stream of its own, and nobody waits for it.
    assert hook.program.streams == [hook.stream]
    assert hook.stream is not gpu.computing
    assert hook.stream.waited[:1] == gpu.computing.events[:1]
    assert gpu.computing.waited == []
    # DDP waits for an event of that stream, which is after the program.
    assert promise.arrived is hook.stream.events[0]


def test_a_bucket_is_held_while_its_kernels_run(gpu: PlayedGPU) -> None:
    hook = Hook(gpu)
    promise = hook.begin(torch.ones(3))
    assert promise.result is not None
    bucket, promise.result = weakref.ref(promise.result), None
    assert bucket() is not None
    hook.stream.synchronize()
    hook.begin(torch.ones(2))
    assert bucket() is None


def test_programs_run_in_the_order_of_buckets(gpu: PlayedGPU) -> None:
    hook = Hook(gpu)
    promises = [hook.begin(torch.full((1,), float(n))) for n in range(4)]
    arrived = [hook.stream.events.index(cast(Event, it.arrived)) for it in promises]
    assert arrived == sorted(arrived)
    assert [it.result.item() for it in promises if it.result is not None] == [0, 1, 2, 3]


def test_a_model_on_two_devices_is_a_sentence() -> None:
    halves = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])
    with pytest.raises(InputError, match="the model lies on 2 devices of this rank"):
        ddp_hook._device_of(cast(Any, halves))
    frozen = halves.requires_grad_(False)
    frozen[1].requires_grad_(True)
    assert ddp_hook._device_of(cast(Any, frozen)) == torch.device("meta")


def test_the_lane_ends_with_the_hook(gpu: PlayedGPU) -> None:
    hook: Any = SimpleNamespace(state=Hook(gpu).state)
    thread = hook.state._lane._thread
    assert thread.is_alive()
    del hook.state
    assert not thread.is_alive()
