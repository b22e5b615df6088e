"""A step of single-device plans with rewrites, on a GPU, against plain PyTorch and torch.compile.

    python benchmarks/one_device.py PLAN ...    # plans for one device, saved with their model

For each plan, median seconds of a step (forward, backward, Adam), the three taken in turns: plain
eager PyTorch, the same under torch.compile, the plan executed by Meshwright; and the losses of the
first step, which must agree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.dtypes import torch_dtype
from meshwright.capture.example import Step
from meshwright.capture.execute import values_of
from meshwright.capture.load import load_example
from meshwright.plan.file import load_plan
from meshwright.plan.model import Plan
from meshwright.run.module import parallelize

ROUNDS, STEPS = 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--no-compile", action="store_true")
    asked = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo", rank=0, world_size=1)
    print("plan | eager ms | torch.compile ms | plan ms | eager / plan | loss eager, plan")
    for path in asked.plans:
        measure(path, load_plan(path), torch.device("cuda" if gpu else "cpu"), asked.no_compile)
    dist.destroy_process_group()


def measure(name: str, plan: Plan, device: torch.device, no_compile: bool) -> None:
    torch.manual_seed(0)
    dtype = torch_dtype(plan.graph.parameters[0].tensor.dtype)
    batch = plan.graph.inputs[0].shape[0]
    example = load_example(plan.model, batch, torch.device("cpu"))
    values = values_of(example, plan.graph)
    inputs = [values[own.name] for own in plan.graph.inputs]
    inputs = [(t.to(dtype) if t.is_floating_point() else t).to(device) for t in inputs]
    constants = {
        own.name: values[own.name].to(torch_dtype(own.dtype)) for own in plan.graph.buffers
    }
    module = parallelize(
        example.model.to(dtype),
        plan,
        device=device,
        constants=constants,
        exact_random=False,
        dtensors=False,
    )
    step = Step(example).to(device=device, dtype=dtype)
    entering = len(inputs) - len(example.targets)
    first, targets = tuple(inputs[:entering]), tuple(inputs[entering:])
    given: tuple[object, ...] = (first, {}, targets)
    if example.named:
        given = ((), dict(zip(example.named, first, strict=True)), targets)
    ways: dict[str, Callable[[], Tensor]] = {"eager": lambda: step(*given)}
    if not no_compile:
        compiled = torch.compile(step)
        ways["compile"] = lambda: compiled(*given)
    ways["plan"] = lambda: module(*inputs)
    learnt = {"plan": module.parameters()}
    updates = {
        way: torch.optim.Adam(list(learnt.get(way, step.parameters())), 1e-5) for way in ways
    }
    losses = {way: forward().item() for way, forward in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, forward in ways.items():
            times[way].append(timed(forward, updates[way], device))
    median = {way: statistics.median(own) * 1e3 for way, own in times.items()}
    print(
        f"{name} | {median['eager']:.2f} | {median.get('compile', float('nan')):.2f} | "
        f"{median['plan']:.2f} | {median['eager'] / median['plan']:.3f} | "
        f"{losses['eager']:.6g}, {losses['plan']:.6g}",
        flush=True,
    )


def timed(
    forward: Callable[[], Tensor], update: torch.optim.Optimizer, device: torch.device
) -> float:
    """Seconds of a step, over several after two to warm up."""
    begin = 0.0
    for number in range(STEPS + 2):
        if number == 2:
            _wait(device)
            begin = time.perf_counter()
        update.zero_grad(set_to_none=True)
        torch.autograd.backward(forward())
        update.step()
    _wait(device)
    return (time.perf_counter() - begin) / STEPS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
