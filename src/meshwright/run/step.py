"""Benchmark of whole training steps on one device: seconds, peak memory, launch overhead. Enters:
an example. Leaves: seconds and peak memory.

A step is plain eager PyTorch: forget the gradients, forward, loss, backward, optimizer. Small
models are bound by the host, which launches one operator after another, so that a step takes about
    max( sum of the operators' seconds on the device, sum of the host's seconds to launch them );
`measure_dispatch` gives the latter for one operator. Operators by themselves: `measure`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, assert_never

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import Bytes, Seconds
from meshwright.capture.source.example import Example, Step
from meshwright.capture.zoo import entry

OptimizerName = Literal["sgd", "momentum", "adam"]

MOMENTUM = 0.9
"""PyTorch's own default is none at all."""

WARM_UP = 3
"""Steps before the clock runs: the first two allocate, and the optimizer's state comes with one."""


class StepMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """One training step on one device."""

    seconds: Seconds
    """The median of the samples."""
    samples: tuple[Seconds, ...]
    host: Seconds | None
    """Median until the last operator is launched; None where operators are not launched ahead.
    An upper bound where the device is the slower one: its full queue makes the host wait."""
    peak: Bytes | None
    """Most bytes allocated at once, as `torch.cuda.max_memory_allocated` tells; None on a CPU.
    What the process held before counts too."""


class DispatchMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Host seconds to launch one operator; on a CPU the tiny operator itself is in it."""

    forward: Seconds
    backward: Seconds


def real_example(
    name: str,
    batch: int,
    device: torch.device,
    sizes: Mapping[str, object] | None = None,
    *,
    tiny: bool = False,
) -> Example:
    """A model of the zoo with random weights and valid random inputs on a device.

    >>> example = real_example("bert-large", 2, torch.device("cpu"), {"layers": 1}, tiny=True)
    >>> sum(p.numel() for p in example.model.parameters())
    3060
    """
    model = entry(name)
    published = model.tiny if tiny else model.sizes
    known = [field.name for field in msgspec.structs.fields(published)]
    for key in sizes or {}:
        if key not in known:
            raise InputError(f"model {name!r} has no size {key!r}", nearest(key, known))
    with torch.device(device):
        return model.example(msgspec.structs.replace(published, **(sizes or {})), batch)


def measure_step(
    example: Example, optimizer: OptimizerName, device: torch.device, dtype: torch.dtype, steps: int
) -> StepMeasurement:
    """Median seconds of a step after some to warm up, the device waited for after each."""
    _refuse_unreal(example)
    step = Step(example).to(device=device, dtype=dtype)
    arguments = (example.inputs, dict(example.named), example.targets)
    moved = pytree.tree_map_only(Tensor, lambda t: _moved(t, device, dtype), arguments)
    update = optimizer_for(optimizer, step.model.parameters())

    def train() -> None:
        update.zero_grad(set_to_none=True)
        loss = step(*moved)
        loss.backward()
        update.step()

    for _ in range(WARM_UP):
        train()
    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    readings = [_clocked(train, device) for _ in range(steps)]
    on_gpu = device.type == "cuda"
    samples = tuple(Seconds(whole) for _, whole in readings)
    return StepMeasurement(
        seconds=Seconds(statistics.median(samples)),
        samples=samples,
        host=Seconds(statistics.median(host for host, _ in readings)) if on_gpu else None,
        peak=Bytes(torch.cuda.max_memory_allocated(device)) if on_gpu else None,
    )


def _refuse_unreal(example: Example) -> None:
    if any(parameter.is_meta for parameter in example.model.parameters()):
        raise InputError(
            "the example's model has no weights, it lies on meta tensors",
            "build it on a real device, as `real_example` does",
        )


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def optimizer_for(
    name: OptimizerName, parameters: Iterable[nn.Parameter], rate: float = 1e-3
) -> torch.optim.Optimizer:
    """The optimizer of a name."""
    params = list(parameters)
    match name:
        case "sgd":
            return torch.optim.SGD(params, rate)
        case "momentum":
            return torch.optim.SGD(params, rate, momentum=MOMENTUM)
        case "adam":
            return torch.optim.Adam(params, rate)
        case _:
            assert_never(name)


def wait(device: torch.device) -> None:
    """Until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _clocked(body: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds until the host has launched everything, and until the device has done it."""
    begin = time.perf_counter()
    body()
    launched = time.perf_counter()
    wait(device)
    return launched - begin, time.perf_counter() - begin


def measure_dispatch(
    device: torch.device, *, operators: int = 300, readings: int = 15
) -> DispatchMeasurement:
    """Host seconds of one operator in a chain of tiny linear and element-wise ones.

    The chain is shorter than a GPU's queue of launches, so that the host never waits.
    """
    weight = torch.randn(16, 16, device=device).requires_grad_()
    x = torch.randn(16, 16, device=device).requires_grad_()

    def chain() -> Tensor:
        y = x
        for _ in range(operators // 3):
            y = functional.gelu(functional.linear(y, weight)) + x
        return y

    forward, backward = [], []
    for _ in range(readings):
        wait(device)
        begin = time.perf_counter()
        last = chain()
        launched = time.perf_counter()
        wait(device)
        again = time.perf_counter()
        torch.autograd.grad(last, (x, weight), torch.ones_like(last))
        forward.append(launched - begin)
        backward.append(time.perf_counter() - again)
    count = 3 * (operators // 3)
    return DispatchMeasurement(
        forward=Seconds(statistics.median(forward) / count),
        backward=Seconds(statistics.median(backward) / count),
    )
