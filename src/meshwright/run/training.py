"""Training by a plan, from the first step to a measurement. Enters: a plan and where its model
comes from, on every rank. Leaves: what was measured, the same on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, counted
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.capture.reference_executor import values_of
from meshwright.capture.source.example import Example
from meshwright.capture.source.function import SEED, loaded_function
from meshwright.capture.source.model_source import parse_source
from meshwright.plan.plan import Measurement, Plan
from meshwright.run.exec.compiled_segments import CompileReport
from meshwright.run.health.watchdog import LIMIT
from meshwright.run.launch.gpus import device_of_rank
from meshwright.run.measured import MeasuredMemory, Ran, measurement
from meshwright.run.module import Parallelized, parallelize
from meshwright.run.plan_example import cast_batch_as_planned, example_of_plan
from meshwright.run.single_device import (
    Batch,
    Doubled,
    Trained,
    double_by_default,
    refuse_incomparable,
    train_on_one_device,
)
from meshwright.run.state.model_state import full_gradients
from meshwright.run.step import optimizer_for, wait
from meshwright.run.verdict import EXACT, compared_plan, least_exact_dtype, verdict

WARM_UP = 1
"""Steps whose time does not count: the first one allocates."""


class TrainingTask(NamedTuple):
    """What to train, and for how long."""

    plan: Plan
    model: str
    """As `capture.load` reads it."""
    data: str | None = None
    """A function that gives batches, as file.py:function; None: the model's example, repeated."""
    steps: int = 5
    seed: int = SEED
    rate: float = 1e-3
    """The optimizer's learning rate."""
    measure: bool = False
    limit: Seconds = LIMIT
    one_device: bool = False
    """Whether the steps are done once more and by the first rank alone, and compared; in float64
    where the plan is in float32 and the model small enough."""
    compile: bool = False
    """Whether segments are compiled by Inductor."""


class RunListener(NamedTuple):
    """What is told of a run while it runs."""

    step: Callable[[int, float, float], None]
    """Each step's number, loss and seconds; number 0 is the one that warms up."""
    compiled: Callable[[CompileReport], None]
    """What is compiled, whenever a graph is."""


def refuse_code_elsewhere(source: str, plan: Path) -> None:
    """Refuse a plan that names a file of code outside of where the user is, and of the plan's
    folder: who runs a plan that was sent to them has not asked for that code.
    """
    parsed = parse_source(source)
    if parsed.form != "function" or not parsed.name.endswith(".py"):
        return
    code = Path(parsed.name).resolve()
    if not any(code.is_relative_to(folder) for folder in (Path.cwd(), plan.resolve().parent)):
        raise InputError(
            f"plan {str(plan)!r} would have the code of {str(code)!r} run, which is neither below "
            "this folder nor beside the plan",
            f"name it with --model {source} if you trust it",
        )


def require_sources(task: TrainingTask) -> None:
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


def train(task: TrainingTask, listener: RunListener | None = None) -> Measurement:
    """Train on this rank, which has a process group; what is measured is told of all ranks.

    The first rank alone tells of steps, and knows of one device.
    """
    if task.one_device:
        refuse_incomparable(task.plan)
    example, values = _prepared(task)
    with _parallelized(task, example, values) as module:
        measured = _measured(module, task, values, listener if dist.get_rank() == 0 else None)
    if not task.one_device:
        return measured
    # Alone is outside of the watch: the others wait for as long as it takes.
    task = task._replace(plan=compared_plan(task.plan))
    ran, batches = _compared(task)
    return measured if ran is None else _judged(task, measured, ran, batches)


def _prepared(task: TrainingTask) -> tuple[Example, dict[str, Tensor]]:
    """The model with its first weights, and the values of its graph."""
    require_sources(task)  # A file may draw and seed when it is imported: that comes before.
    torch.manual_seed(task.seed)
    example = example_of_plan(task.plan, task.model)
    return example, _values(example, task.plan)


def _parallelized(
    task: TrainingTask, example: Example, values: Mapping[str, Tensor]
) -> Parallelized:
    state, buffers = example.model.state_dict(), task.plan.graph.buffers
    return parallelize(
        example.model,
        task.plan,
        device=device_of_rank(),
        constants={
            buffer.name: values[buffer.name] for buffer in buffers if buffer.name not in state
        },
        limit=task.limit,
        exact_random=False,
        dtensors=False,
        compile=task.compile,
    )


def _compared(task: TrainingTask) -> tuple[Trained | None, list[Batch]]:
    """The same steps without a clock: what all ranks have learnt, on the first of them."""
    example, values = _prepared(task)
    gradients: dict[str, Tensor] | None = None
    losses, batches = list[float](), list[Batch]()
    exact = double_by_default() if least_exact_dtype(task.plan) == EXACT else nullcontext()
    with _parallelized(task, example, values) as module, exact:
        optimizer = optimizer_for(task.plan.options.optimizer, module.parameters(), task.rate)
        for batch in islice(_batches(task, values), task.steps + WARM_UP):
            batches.append(batch)
            optimizer.zero_grad()
            loss = module.loss(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            if not losses:
                gradients = full_gradients(module.executor)
            optimizer.step()
            losses.append(loss.item())
        state = module.whole_state()
    if state is None:
        return None, []
    return Trained(tuple(losses), gradients or {}, state), batches


def _judged(
    task: TrainingTask, measured: Measurement, ran: Trained, batches: Sequence[Batch]
) -> Measurement:
    """A measurement with what one device says of the same steps."""
    example, _ = _prepared(task)
    dtype = least_exact_dtype(task.plan)
    update = partial(optimizer_for, task.plan.options.optimizer, rate=task.rate)
    with Doubled() if dtype == EXACT else nullcontext():
        alone = train_on_one_device(example, batches, update, device_of_rank())
    return msgspec.structs.replace(measured, one_device=verdict(dtype, ran, alone))


def _measured(
    module: Parallelized,
    task: TrainingTask,
    values: Mapping[str, Tensor],
    listener: RunListener | None,
) -> Measurement:
    executor = module.executor
    if executor.graphs is not None and listener is not None:
        executor.graphs.told = listener.compiled
    optimizer = optimizer_for(task.plan.options.optimizer, module.parameters(), task.rate)
    ran, memory = Ran([], [], 0), MeasuredMemory(module)
    last: Batch = ()
    for number, last in enumerate(islice(_batches(task, values), task.steps + WARM_UP)):
        taken, loss, sent = _step(module, optimizer, last)
        ran = Ran([*ran.seconds, taken], [*ran.losses, loss], sent)
        if listener is not None:
            listener.step(number, loss, taken)
    if len(ran.seconds) <= WARM_UP:
        raise InputError(
            f"the data ends after {counted(len(ran.seconds), 'step')}",
            f"give at least {WARM_UP + 1}: the first step only warms up",
        )
    if task.measure:
        executor.recorder.on = True
        _step(module, optimizer, last)
        executor.recorder.on = False
        with memory.looking() as look:
            _step(module, optimizer, last)
            look()
    return measurement(module, optimizer, ran._replace(seconds=ran.seconds[WARM_UP:]), memory)


def _step(
    module: Parallelized, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[float, float, int]:
    """A step's seconds, its loss, and the bytes that this rank sent."""
    executor = module.executor
    wait(executor.device)
    sent, begin = executor.wire.sent, time.perf_counter()
    optimizer.zero_grad()
    loss = module.loss(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    wait(executor.device)
    return time.perf_counter() - begin, loss.item(), executor.wire.sent - sent


def _values(example: Example, plan: Plan) -> dict[str, Tensor]:
    """The example's values by the names of the graph, in its dtypes."""
    return {
        name: value.detach().to(torch_dtype(plan.graph.specs[name].dtype))
        for name, value in values_of(example, plan.graph).items()
    }


def _batches(task: TrainingTask, values: Mapping[str, Tensor]) -> Iterator[Batch]:
    """The user's batches in the plan's dtypes, or the example's again and again."""
    if task.data is None:
        yield from repeat(tuple(values[tensor.name] for tensor in task.plan.graph.inputs))
        return
    batches = loaded_function(parse_source(task.data))()
    if not isinstance(batches, Iterable):
        raise InputError(
            f"{task.data!r} gives a {type(batches).__name__}",
            "have it return or yield batches: tuples of the model's inputs, then targets",
        )
    for batch in batches:
        # Flat, as a step takes it: batches are often lists of two, or dicts.
        yield cast_batch_as_planned(pytree.tree_leaves(batch), task.plan.graph)
