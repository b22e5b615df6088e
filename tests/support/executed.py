"""Plans carried out on real ranks, and the same graph on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.export import capture
from meshwright.capture.load import load_example, load_graph
from meshwright.capture.reference_executor import execute, values_of
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.pieces import Box
from meshwright.plan.plan import Plan
from meshwright.run.comm.communicator import Communicator
from meshwright.run.exec.compiled_segments import Backend, eager_backend, inductor
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import ParameterPiece
from meshwright.run.launch.gpus import device_of_rank
from meshwright.run.state.model_state import load_state, names_of, take_constants
from meshwright.run.step import real_example

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class Model(NamedTuple):
    """A graph with values for all that enters it."""

    graph: OperatorGraph
    values: Arrays


class Part(NamedTuple):
    """A part of a parameter, or of its gradient."""

    box: Box
    first: int
    """Where in the box, as a row, a shard begins."""
    values: Array


Parts = dict[str, Part]


class Training(NamedTuple):
    """A plan, and how it is trained."""

    plan: Plan
    model: str
    """Whose values it takes."""
    optimizer: str
    steps: int
    backend: str = "operators"


class Trained(NamedTuple):
    """What a rank has after training."""

    losses: list[float]
    gradients: Parts
    """After the first step."""
    parameters: Parts
    """After the last one."""
    sent: list[int]
    """Bytes that it sent in each step."""


@cache
def tiny(name: str, batch: int, dtype: str = "float64") -> Model:
    """A tiny model of the zoo, or what a function of a module builds."""
    torch.manual_seed(1)
    if ":" in name:
        example = load_example(name, batch, torch.device("cpu"))
        graph = load_graph(example).graph
    else:
        example = real_example(name, batch, torch.device("cpu"), tiny=True)
        graph = capture(example, name)
    values = values_of(example, graph)
    real = getattr(torch, dtype)
    return Model(
        cast_graph(graph, dtype),
        {
            key: (value.to(real) if value.is_floating_point() else value)
            .detach()
            .reshape(graph.specs[key].shape)
            .numpy()
            .copy()
            for key, value in values.items()
        },
    )


def tensors(values: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in values.items()}


def by_library(model: Model) -> tuple[float, Arrays]:
    """The loss and the gradients of all parameters, as autograd makes them of the whole graph."""
    graph, values = model.graph, tensors(model.values)
    learnt = [p.tensor.name for p in graph.parameters if p.trainable]
    for name in learnt:
        values[name].requires_grad_()
    assert graph.loss is not None
    loss = execute(graph, values)[graph.loss]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        loss, [values[name] for name in learnt], allow_unused=True
    )
    return loss.item(), {
        name: np.zeros(values[name].shape) if gradient is None else gradient.numpy()
        for name, gradient in zip(learnt, gradients, strict=True)
    }


def trained_each(all_: Sequence[Training], models: Mapping[str, Arrays]) -> list[Trained]:
    """What this rank has after each training, one after the other."""
    outcomes, wire = [], Communicator()
    for number, training in enumerate(all_):
        try:
            outcomes.append(trained(training, models[training.model], wire))
        except Exception as error:
            raise RuntimeError(f"training {number} of {len(all_)} failed") from error
    return outcomes


BACKENDS: dict[str, Backend | None] = {
    "operators": None,
    "graphs": eager_backend,
    "inductor": inductor,
}
"""What runs segments."""


def trained(training: Training, arrays: Arrays, wire: Communicator) -> Trained:
    """What this rank has after training a plan."""
    device = device_of_rank()
    executor = Executor(
        training.plan, wire, dist.get_rank(), device, backend=BACKENDS[training.backend]
    )
    values = {name: value.to(device) for name, value in tensors(arrays).items()}
    take_constants(executor, values)
    learnt = training.plan.graph.parameters
    state = {n: values[p.tensor.name].view(p.stored.shape) for p in learnt for n in names_of(p)}
    load_state(executor, state)
    pieces = [piece for piece in executor.parameters.pieces.values() if piece.seen.requires_grad]
    update = OPTIMIZERS[training.optimizer]
    memory: list[Memory] = [{} for _ in pieces]
    losses, sent = list[float](), [executor.wire.sent]
    gradients: Parts = {}
    for step in range(training.steps):
        losses.append(executor.step(values).item())
        executor.wire.finish()
        sent.append(executor.wire.sent)
        for piece, kept in zip(pieces, memory, strict=True):
            if piece.gradient is None:
                continue
            if step == 0:
                gradients[piece.name] = _part(piece, piece.gradient)
            update(piece.seen.detach(), piece.gradient.view(piece.seen.shape), kept, step + 1)
    executor.close()
    parameters = {piece.name: _part(piece, piece.seen.detach()) for piece in pieces}
    return Trained(losses, gradients, parameters, [b - a for a, b in pairwise(sent)])


RATE = 1e-4
"""Of learning. At 0.01 a tiny Inception of 8 samples multiplies rounding by 20 in every step, so
that numbers after five steps would tell nothing."""

Memory = dict[str, Tensor]
"""What an optimizer remembers of a parameter."""


def momentum(seen: Tensor, gradient: Tensor, memory: Memory, step: int) -> None:
    """v <- 0.9 v + g, x <- x - RATE v."""
    speed = memory.setdefault("speed", torch.zeros_like(seen))
    speed.mul_(0.9).add_(gradient)
    seen.sub_(RATE * speed)


def adam(seen: Tensor, gradient: Tensor, memory: Memory, step: int) -> None:
    """Kingma and Ba 2015, algorithm 1; with the least divisor of theirs, 1e-8, the rounding of tiny
    gradients would count as much as large ones do.
    """
    mean = memory.setdefault("mean", torch.zeros_like(seen))
    square = memory.setdefault("square", torch.zeros_like(seen))
    mean.mul_(0.9).add_(0.1 * gradient)
    square.mul_(0.999).add_(0.001 * gradient * gradient)
    rate = (square / (1 - 0.999**step)).sqrt_().add_(1e-3)
    seen.sub_(RATE * mean / (1 - 0.9**step) / rate)


OPTIMIZERS = {"momentum": momentum, "adam": adam}
"""By hand: making the library's first one in a process takes two seconds of imports."""


def _part(piece: ParameterPiece, values: Tensor) -> Part:
    sharing = piece.sharing
    first = 0 if sharing is None else sharing.stretches[sharing.own][0]
    return Part(piece.box, first, values.cpu().numpy().copy())


def whole(parts: Parts) -> Arrays:
    """What one device has, by name."""
    return {name: part.values for name, part in parts.items()}


def errors(expected: Arrays, parts_by_rank: Sequence[Parts]) -> dict[str, float]:
    """For each tensor the largest error, relative to its largest number; infinite if some is
    missing.

    What is small beside all others is rounding: the gradient of a bias of keys is zero.
    """
    least = 1e-6 * max(np.abs(array).max(initial=0.0) for array in expected.values())
    missing = {name: np.ones(array.shape, bool) for name, array in expected.items()}
    worst = dict.fromkeys(expected, 0.0)
    for parts in parts_by_rank:
        for name, (box, first, values) in parts.items():
            place = tuple(slice(a, b) for a, b in box)
            scale = float(max(np.abs(expected[name]).max(initial=0.0), least))
            row = slice(first, first + values.size)
            reference = expected[name][place].reshape(-1)[row]
            wrong = float(np.abs(reference - values.reshape(-1)).max(initial=0.0))
            worst[name] = max(worst[name], wrong / scale if wrong else 0.0)
            mask = missing[name][place].copy().reshape(-1)
            mask[row] = False
            missing[name][place] = mask.reshape(missing[name][place].shape)
    return {
        name: float("inf") if missing[name].any() or np.isnan(error) else error
        for name, error in worst.items()
    }
