"""Training scripts as a user would write them, for ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright import parallelize
from meshwright.capture.load import load_example
from meshwright.capture.reference_executor import values_of
from meshwright.capture.source.example import Example, Step
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan

BATCH = 8


def example_of(source: str) -> Example:
    torch.manual_seed(3)
    example = load_example(source, BATCH, torch.device("cpu"))
    example.model.double()
    return example


def batch_of(example: Example, graph: OperatorGraph) -> list[Tensor]:
    values = values_of(example, graph)
    inputs = [values[tensor.name] for tensor in graph.inputs]
    return [value.double() if value.is_floating_point() else value for value in inputs]


def plain(source: str, plan: Plan, steps: int, scale: float) -> tuple[list[float], dict[str, Any]]:
    """The losses and the state of the plain model on one device."""
    example = example_of(source)
    batch, step = batch_of(example, plan.graph), Step(example)
    optimizer = torch.optim.SGD(example.model.parameters(), 0.1, momentum=0.9)
    losses = []
    count = len(batch) - len(example.targets)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(tuple(batch[:count]), {}, tuple(batch[count:]))
        (loss * scale).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: tensor.numpy() for key, tensor in example.model.state_dict().items()}


def trained(
    source: str, plan: Plan, steps: int, scale: float
) -> tuple[list[float], dict[str, Any] | None]:
    """The same by a plan, on ranks; the state on the first."""
    example = example_of(source)
    batch = batch_of(example, plan.graph)
    losses = []
    with parallelize(example.model, plan, exact_random=True) as model:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(*batch)
            (loss * scale).backward()
            optimizer.step()
            losses.append(loss.item())
        state = model.whole_state()
    arrays = None if state is None else {key: tensor.numpy() for key, tensor in state.items()}
    return losses, arrays


def evaluated(source: str, plan: Plan) -> tuple[float, float]:
    """The loss in evaluation mode by a plan, and of the plain model."""
    example = example_of(source)
    batch = batch_of(example, plan.graph)
    with parallelize(example.model, plan) as model, torch.no_grad():
        loss = model.eval()(*batch).item()
    example.model.eval()
    count = len(batch) - len(example.targets)
    whole = Step(example).eval()
    with torch.no_grad():
        return loss, whole(tuple(batch[:count]), {}, tuple(batch[count:])).item()


def given_wrong(source: str, plan: Plan, what: str) -> None:
    """A user's mistakes."""
    example = example_of(source)
    batch = batch_of(example, plan.graph)
    model = parallelize(example.model, plan)
    state = example.model.state_dict()
    if what == "extra":
        model.load_whole_state(state | {"stray": torch.zeros(1)})
    if what == "missing":
        model.load_whole_state(dict(list(state.items())[1:]))
    if what == "count":
        model(*batch, batch[-1])
    if what == "batch":
        model(*(tensor[: BATCH // 2 - 1] for tensor in batch))
    dist.barrier()


def errors_of(actual: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of two states, relative to each tensor's largest number."""
    assert actual.keys() == expected.keys()
    return max(
        float(
            np.abs(actual[key] - array).max(initial=0.0) / max(1e-6, np.abs(array).max(initial=0.0))
        )
        for key, array in expected.items()
        if array.dtype.kind == "f"
    )
