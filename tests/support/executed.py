"""Plans carried out on real ranks, and the same graph on one device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.execute import execute, values_of
from meshwright.capture.export import capture
from meshwright.graph.dtypes import in_dtype
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Plan
from meshwright.run.executor import Executor
from meshwright.run.parameters import Piece
from meshwright.run.step import real_example
from meshwright.run.wire import Wire

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class Model(NamedTuple):
    """A graph with values for all that enters it."""

    graph: OperatorGraph
    values: Arrays


class Result(NamedTuple):
    """What a rank has after a step."""

    loss: float
    gradients: dict[str, tuple[Any, int, Array]]
    """With the boxes that they are of, and where in them shards begin."""
    sent: int


@cache
def tiny(name: str, batch: int, dtype: str = "float64") -> Model:
    """A tiny model of the zoo."""
    torch.manual_seed(1)
    example = real_example(name, batch, torch.device("cpu"), tiny=True)
    graph = capture(example, name)
    values = values_of(example, graph)
    real = getattr(torch, dtype)
    return Model(
        in_dtype(graph, dtype),
        {
            key: (own.to(real) if own.is_floating_point() else own).detach().numpy().copy()
            for key, own in values.items()
        },
    )


def tensors(values: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(own.copy()) for name, own in values.items()}


def one_device(model: Model) -> tuple[float, Arrays]:
    """The loss and the gradients of all parameters."""
    graph, values = model.graph, tensors(model.values)
    learnt = [p.tensor.name for p in graph.parameters if p.trainable]
    for name in learnt:
        values[name].requires_grad_()
    assert graph.loss is not None
    loss = execute(graph, values)[graph.loss]
    found = torch.autograd.grad(loss, [values[name] for name in learnt], allow_unused=True)
    return loss.item(), {
        name: np.zeros(values[name].shape) if own is None else own.numpy()
        for name, own in zip(learnt, found, strict=True)
    }


def on_rank(plan: Plan, arrays: Arrays) -> Result:
    """What this rank has after a step of a plan."""
    import faulthandler

    faulthandler.dump_traceback_later(25, exit=True)
    executor = Executor(plan, Wire(), dist.get_rank(), torch.device("cpu"))
    values = tensors(arrays)
    executor.parameters.load(values)
    loss = executor.step(values)
    executor.wire.finish()
    executor.close()
    found = {
        name: (piece.box, _first(piece), piece.gradient.numpy().copy())
        for name, piece in executor.parameters.pieces.items()
        if piece.gradient is not None
    }
    return Result(loss.item(), found, executor.wire.sent)


def _first(piece: Piece) -> int:
    return 0 if piece.sharing is None else sum(piece.sharing.sizes[: piece.sharing.own])


def errors(expected: Arrays, results: list[Result]) -> dict[str, float]:
    """For each gradient the largest error, relative to its largest number; infinite if missing.

    What is small beside all others is rounding: the gradient of a bias of keys is zero.
    """
    least = 1e-6 * max(np.abs(own).max(initial=0.0) for own in expected.values())
    worst = {name: float("inf") for name, own in expected.items() if own.any()}
    for result in results:
        for name, (box, first, found) in result.gradients.items():
            own = expected[name][tuple(slice(a, b) for a, b in box)].reshape(-1)
            own = own[first : first + found.size]
            scale = max(np.abs(expected[name]).max(initial=0.0), least)
            error = float(np.abs(own - found.reshape(-1)).max(initial=0.0) / scale)
            known = worst.get(name, 0.0)
            worst[name] = error if known == float("inf") else max(known, error)
    return worst


def largest_error(expected: Arrays, results: list[Result]) -> float:
    return max(errors(expected, results).values())


def on_rank_each(plans: list[Plan], arrays: Arrays) -> list[Result | str]:
    """What this rank has after a step of each plan, or what went wrong."""
    import traceback

    found: list[Result | str] = []
    for plan in plans:
        try:
            found.append(on_rank(plan, arrays))
        except Exception:
            traceback.print_exc()
            found.append(traceback.format_exc())
            break
    return found
