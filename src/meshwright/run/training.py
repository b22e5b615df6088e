"""Training by a plan, from the first step to a measurement. Enters: a plan and where its model
comes from, on every rank. Leaves: what was measured, the same on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.dtypes import torch_dtype
from meshwright.capture.example import Example
from meshwright.capture.execute import values_of
from meshwright.capture.function import loaded_function
from meshwright.capture.load import load_example
from meshwright.capture.options import parse_source
from meshwright.foundation.errors import InputError
from meshwright.foundation.units import Seconds, counted
from meshwright.graph.counts import is_real
from meshwright.plan.model import Measurement, Plan
from meshwright.run.alone import Batch, refuse_incomparable, train_alone
from meshwright.run.gpus import device_of_rank
from meshwright.run.measured import Memory, Ran, measurement
from meshwright.run.module import Parallelized, parallelize
from meshwright.run.step import optimizer_for, wait
from meshwright.run.watch import LIMIT

WARM_UP = 1
"""Steps whose time does not count: the first one allocates."""


class Task(NamedTuple):
    """What to train, and for how long."""

    plan: Plan
    model: str
    """As `capture.load` reads it."""
    data: str | None = None
    """A function that gives batches, as file.py:function; None: the model's example, repeated."""
    steps: int = 5
    seed: int = 0
    rate: float = 1e-3
    """The optimizer's learning rate."""
    measure: bool = False
    limit: Seconds = LIMIT
    one_device: bool = False
    """Whether the first rank trains the same steps by itself, and compares."""


Told = Callable[[int, float, float], None]
"""Is told each step's number, loss and seconds; number 0 is the one that warms up."""


class Trained(NamedTuple):
    """What a rank has once the steps are done."""

    measurement: Measurement
    batches: Sequence[Batch]
    """Of all steps, on a rank that trains them again by itself."""
    state: Mapping[str, Tensor] | None
    """What the ranks have learnt together, on such a rank."""


def require_sources(task: Task) -> None:
    """Refuse a model or data whose function is not there, before ranks look for it."""
    parsed = parse_source(task.model)
    if parsed.form == "function":
        try:
            loaded_function(parsed)
        except InputError as error:
            raise InputError(
                error.problem, "run where the plan was made, or name the model with --model"
            ) from None
    if task.data is not None:
        try:
            loaded_function(parse_source(task.data))
        except InputError as error:
            raise error.at("--data") from None


def train(task: Task, told: Told | None = None) -> Measurement:
    """Train on this rank, which has a process group; what is measured is told of all ranks.

    The first rank alone tells of steps, and knows of one device.
    """
    if task.one_device:
        refuse_incomparable(task.plan)
    torch.manual_seed(task.seed)
    example = load_example(task.model, _samples(task.plan), torch.device("cpu"))
    values = _values(example, task.plan)
    with parallelize(
        example.model.to(_real_dtype(task.plan)),
        task.plan,
        device=device_of_rank(),
        constants=_constants(example, task.plan, values),
        limit=task.limit,
    ) as module:
        found = _trained(module, task, values, told if dist.get_rank() == 0 else None)
    if found.state is None:
        return found.measurement
    # Outside of the watch: the others wait for as long as it takes.
    update = partial(optimizer_for, task.plan.options.optimizer, rate=task.rate)
    alone = train_alone(example, found.batches, update, device_of_rank())
    compared = alone.against(found.measurement.loss, found.state)
    return msgspec.structs.replace(found.measurement, one_device=compared)


def _trained(
    module: Parallelized, task: Task, values: Mapping[str, Tensor], told: Told | None
) -> Trained:
    executor = module.executor
    optimizer = optimizer_for(task.plan.options.optimizer, module.parameters(), task.rate)
    ran, memory = Ran([], [], 0), Memory(executor.device)
    last: Batch = ()
    kept: list[Batch] = []
    for number, last in enumerate(islice(_batches(task, values), task.steps + WARM_UP)):
        taken, loss, sent = _step(module, optimizer, last)
        ran = Ran([*ran.seconds, taken], [*ran.losses, loss], sent)
        if task.one_device and executor.rank == 0:
            kept.append(last)
        if told is not None:
            told(number, loss, taken)
    if len(ran.seconds) <= WARM_UP:
        raise InputError(
            f"the data ends after {counted(len(ran.seconds), 'step')}",
            f"give at least {WARM_UP + 1}: the first step only warms up",
        )
    if task.measure:
        executor.recorder.on = True
        module(*last).backward()
        executor.recorder.on = False
    found = measurement(module, optimizer, ran._replace(seconds=ran.seconds[WARM_UP:]), memory)
    return Trained(found, kept, module.whole_state() if task.one_device else None)


def _step(
    module: Parallelized, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[float, float, int]:
    """A step's seconds, its loss, and the bytes that this rank sent."""
    executor = module.executor
    wait(executor.device)
    sent, begin = executor.wire.sent, time.perf_counter()
    optimizer.zero_grad()
    loss = module(*batch)
    loss.backward()
    optimizer.step()
    wait(executor.device)
    return time.perf_counter() - begin, loss.item(), executor.wire.sent - sent


def _samples(plan: Plan) -> int | None:
    """The batch that the plan's inputs have."""
    return plan.graph.inputs[0].shape[0] if plan.graph.inputs else None


def _real_dtype(plan: Plan) -> torch.dtype:
    """The dtype of the plan's parameters."""
    names = {p.tensor.dtype for p in plan.graph.parameters if is_real(p.tensor.dtype)}
    return torch_dtype(names.pop()) if len(names) == 1 else torch.float32


def _values(example: Example, plan: Plan) -> dict[str, Tensor]:
    """The example's values by the names of the graph, in its dtypes."""
    return {
        name: own.detach().to(torch_dtype(plan.graph.specs[name].dtype))
        for name, own in values_of(example, plan.graph).items()
    }


def _constants(example: Example, plan: Plan, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of the graph that the model's own state does not have."""
    state = example.model.state_dict()
    return {own.name: values[own.name] for own in plan.graph.buffers if own.name not in state}


def _batches(task: Task, values: Mapping[str, Tensor]) -> Iterator[Batch]:
    """The user's batches, or the example's again and again."""
    if task.data is None:
        yield from repeat(tuple(values[tensor.name] for tensor in task.plan.graph.inputs))
        return
    found = loaded_function(parse_source(task.data))()
    if not isinstance(found, Iterable):
        raise InputError(
            f"{task.data!r} gives a {type(found).__name__}",
            "have it return or yield batches: tuples of the model's inputs, then targets",
        )
    for batch in found:
        yield tuple(batch) if isinstance(batch, tuple | list) else (batch,)
