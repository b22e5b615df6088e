"""Training loop of a plan over islands, from the first step to its measurement. Enters: a plan and
where its model comes from, on every rank. Leaves: losses and seconds of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, counted
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.capture.reference_executor import values_of
from meshwright.capture.source.function import loaded_function
from meshwright.capture.source.model_source import parse_source
from meshwright.graph.batch import with_samples
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.stage_graph import GATE
from meshwright.plan.island_plan import IslandPlan
from meshwright.run.health.watchdog import LIMIT
from meshwright.run.islands import parallelize_islands
from meshwright.run.launch.gpus import device_of_rank
from meshwright.run.plan_example import cast_batch_as_planned, example_of_graph
from meshwright.run.step import optimizer_for, wait
from meshwright.run.training import WARM_UP


class IslandTask(NamedTuple):
    """What to train, and for how long; fields as in `TrainingTask`."""

    plan: IslandPlan
    model: str
    data: str | None = None
    steps: int = 5
    seed: int = 0
    rate: float = 1e-3
    limit: Seconds = LIMIT


class IslandRun(NamedTuple):
    """What was measured, on a rank."""

    seconds: tuple[float, ...]
    """Of each step after the one that warms up."""
    losses: tuple[float, ...]
    """Of all steps."""


def train_on_islands(
    task: IslandTask, report: Callable[[int, float, float], None] | None = None
) -> IslandRun:
    """Train on this rank, which has a process group; the first rank tells of steps."""
    torch.manual_seed(task.seed)
    graph, first = whole_model(task.plan), dist.get_rank() == 0
    example = example_of_graph(graph, task.plan.batch, task.model)
    values = {
        name: value.detach().to(torch_dtype(graph.specs[name].dtype))
        for name, value in values_of(example, graph).items()
    }
    state, device = example.model.state_dict(), device_of_rank()
    constants = {
        buffer.name: values[buffer.name] for buffer in graph.buffers if buffer.name not in state
    }
    seconds, losses = list[float](), list[float]()
    options = task.plan.parts[0].plan.options
    with parallelize_islands(
        example.model, task.plan, device=device, constants=constants, limit=task.limit
    ) as module:
        optimizer = optimizer_for(options.optimizer, module.parameters(), task.rate)
        for batch in islice(_batches(task, graph, values), task.steps + WARM_UP):
            wait(device)
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            wait(device)
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.item())
            if first and report is not None:
                report(len(losses) - 1, losses[-1], seconds[-1])
    if len(losses) <= WARM_UP:
        raise InputError(
            f"the data ends after {counted(len(losses), 'step')}",
            f"give at least {WARM_UP + 1}: the first step only warms up",
        )
    return IslandRun(tuple(seconds[WARM_UP:]), tuple(losses))


def whole_model(plan: IslandPlan) -> OperatorGraph:
    """What all parts have of the model; of stages without its operators."""
    graphs = [part.plan.graph for part in plan.parts]
    if plan.stages == 1:
        largest = max(plan.parts, key=lambda part: part.share)
        return with_samples(largest.plan.graph, plan.batch)
    inputs = {tensor.name: tensor for graph in graphs for tensor in graph.inputs}
    parameters = {
        parameter.tensor.name: parameter for graph in graphs for parameter in graph.parameters
    }
    buffers = {buffer.name: buffer for graph in graphs for buffer in graph.buffers}
    return OperatorGraph(
        name=graphs[0].name,
        inputs=tuple(inputs[name] for name in plan.inputs),
        parameters=tuple(
            parameter for name, parameter in parameters.items() if not name.startswith(GATE)
        ),
        buffers=tuple(buffers.values()),
        operators=(),
    )


def _batches(
    task: IslandTask, graph: OperatorGraph, values: dict[str, Tensor]
) -> Iterator[tuple[Tensor, ...]]:
    """The user's batches in the plan's dtypes, or the example's again and again."""
    if task.data is None:
        yield from repeat(tuple(values[tensor.name] for tensor in graph.inputs))
        return
    batches = loaded_function(parse_source(task.data))()
    if not isinstance(batches, Iterable):
        raise InputError(
            f"{task.data!r} gives a {type(batches).__name__}",
            "have it return or yield batches: tuples of the model's inputs, then targets",
        )
    for batch in batches:
        yield cast_batch_as_planned(pytree.tree_leaves(batch), graph)
