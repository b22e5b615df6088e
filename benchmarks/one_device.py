"""A step of single-device plans against plain PyTorch and torch.compile, all eager and compiled.

    python benchmarks/one_device.py PLAN.json ...             # for one device, with their model
    python benchmarks/one_device.py zoo:bert-large@16@bfloat16 ...    # a model, batch and dtype

For each plan, median seconds of a step (forward, backward, Adam), the four taken in turns: plain
eager PyTorch, the plan executed operator by operator, the same two compiled; the losses of the
first step, which must agree; and what was compiled. Each becomes a line of one_device.jsonl; what
has one on this device is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.load import load_example, load_model
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.capture.reference_executor import values_of
from meshwright.capture.source.example import Step
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.file import load_plan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.module import parallelize
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units

ROUNDS, STEPS = 5, 10

ROWS = Path(__file__).with_suffix(".jsonl")

WAYS = ("eager", "plan", "compile", "compiled plan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--no-compile", action="store_true")
    asked = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo", rank=0, world_size=1)
    ways = WAYS[:2] if asked.no_compile else WAYS
    print("plan | " + " | ".join(f"{way} ms" for way in ways) + " | plan / eager", end="")
    print(" | compiled plan / compile" * (not asked.no_compile) + " | losses", flush=True)
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    done = {(row["plan"], row["device"]) for row in map(json.loads, lines) if len(row["ms"]) > 3}
    for path in asked.plans:
        if (path, named(device)) in done:
            continue
        try:
            measure(path, planned(path), device, ways)
        except Exception as error:
            print(f"{path} | {type(error).__name__}: {error}", flush=True)
    dist.destroy_process_group()


def named(device: torch.device) -> str:
    """What the device is."""
    gpu = device.type == "cuda"
    return torch.cuda.get_device_name(device) if gpu else f"CPU, {torch.get_num_threads()} threads"


def planned(path: str) -> Plan:
    """A plan of a file, or of a model as it is."""
    if path.endswith(".json"):
        return load_plan(path)
    source, batch, *dtype = path.split("@")
    graph = load_model(source, int(batch)).graph
    graph = cast_graph(graph, dtype[0]) if dtype else graph
    layouts = [Layout(()) for _ in units(graph)]
    plan = Plan.of("plain", graph, Cluster.named("h200", gpu=1), layouts, Options(optimizer="adam"))
    return msgspec.structs.replace(plan, model=source)


def measure(name: str, plan: Plan, device: torch.device, asked: Sequence[str]) -> None:
    torch.manual_seed(0)
    batch = plan.graph.inputs[0].shape[0]
    example = load_example(plan.model, batch, torch.device("cpu"))
    dtype = torch_dtype(plan.graph.parameters[0].tensor.dtype)
    values = values_of(example, plan.graph)
    inputs = [values[tensor.name] for tensor in plan.graph.inputs]
    inputs = [(t.to(dtype) if t.is_floating_point() else t).to(device) for t in inputs]
    constants = {
        buffer.name: values[buffer.name].to(torch_dtype(buffer.dtype))
        for buffer in plan.graph.buffers
    }
    modules = {
        way: parallelize(
            example.model.to(dtype),
            plan,
            device=device,
            constants=constants,
            exact_random=False,
            dtensors=False,
            compile=way == "compiled plan",
        )
        for way in asked
        if "plan" in way
    }
    step = Step(example).to(device=device, dtype=dtype)
    entering = len(inputs) - len(example.targets)
    first, targets = tuple(inputs[:entering]), tuple(inputs[entering:])
    arguments: tuple[object, ...] = (first, {}, targets)
    if example.named:
        arguments = ((), dict(zip(example.named, first, strict=True)), targets)
    compiled = torch.compile(step)
    plain: dict[str, Callable[[], Tensor]] = {
        "eager": lambda: step(*arguments),
        "compile": lambda: compiled(*arguments),
    }
    ways = {
        way: plain[way] if way in plain else partial(modules[way].loss, *inputs) for way in asked
    }
    updates = {
        way: torch.optim.Adam(list(modules.get(way, step).parameters()), 1e-5) for way in ways
    }
    losses = {way: forward().item() for way, forward in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, forward in ways.items():
            times[way].append(timed(forward, updates[way], device))
    median = {way: statistics.median(seconds) * 1e3 for way, seconds in times.items()}
    ratios = [median["plan"] / median["eager"]]
    if "compile" in median:
        ratios.append(median["compiled plan"] / median["compile"])
    cells = [*(f"{value:.2f}" for value in median.values()), *(f"{ratio:.3f}" for ratio in ratios)]
    print(" | ".join([name, *cells, ", ".join(f"{loss:.6g}" for loss in losses.values())]))
    row: dict[str, object] = {
        "plan": name,
        "device": named(device),
        "torch": torch.__version__,
        "ms": median,
    }
    row |= {"ratios": ratios, "losses": losses, "when": datetime.now(UTC).date().isoformat()}
    with ROWS.open("a") as rows:
        rows.write(json.dumps(row) + "\n")
    for module in modules.values():
        if module.executor.graphs is not None:
            print(f"  {module.executor.graphs.report()}", flush=True)
        module.executor.close()


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
