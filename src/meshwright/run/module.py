"""A plan inside the user's own training script. Enters: a module and a plan, on every rank.
Leaves: a module that gives the loss of a batch; its parameters are this rank's pieces.

    with meshwright.parallelize(model, plan) as model:
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches:                     # the same batch on every rank
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

A step runs forward and backward at once, micro-batch by micro-batch where the plan says so; calling
`backward` on the loss then only hands out the gradients, times whatever the loss was scaled by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils import _pytree as pytree

from meshwright.foundation.errors import InputError
from meshwright.foundation.units import Seconds, counted
from meshwright.graph.canonical import canonical_hash
from meshwright.plan.file import plan_bytes
from meshwright.plan.model import Plan
from meshwright.run.agreement import Statement, agree, digest
from meshwright.run.checkpoint import load_checkpoint, save_checkpoint
from meshwright.run.executor import Executor
from meshwright.run.initial import initialise
from meshwright.run.state import full_state, load_state, take_constants
from meshwright.run.watch import LIMIT, Watch
from meshwright.run.wire import Wire


class Parallelized(nn.Module):
    """A model whose steps run by a plan: what `parallelize` gives."""

    def __init__(self, executor: Executor, limit: Seconds) -> None:
        super().__init__()
        self.executor, self._limit = executor, limit
        self._watch: Watch | None = None
        self._anchor = torch.zeros((), requires_grad=True)
        for name, piece in executor.parameters.pieces.items():
            self.register_parameter(name.replace(".", "/"), piece.seen)
        if not executor.parameters.pieces:
            # A plan may leave a device idle, and optimizers refuse to have nothing to do.
            self.register_parameter("nothing", nn.Parameter(torch.zeros(0)))

    def __enter__(self) -> Self:
        """Watch the other ranks: if one dies or stands still, all end with a sentence."""
        store = dist.distributed_c10d._get_default_store()
        self._watch = Watch(store, dist.get_rank(), dist.get_world_size(), limit=self._limit)
        self._watch.__enter__()
        self.executor.pulse = self._watch.progress
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._watch is not None
        if error is None:
            self.executor.close()
        self._watch.__exit__(kind, error, trace)

    def forward(self, *inputs: object, **named: object) -> Tensor:
        """The loss of a batch, of which every rank gives all."""
        if self._watch is not None:
            self._watch.step(self.executor.steps)
        given = [leaf for leaf in pytree.tree_leaves((inputs, named)) if isinstance(leaf, Tensor)]
        values = self._checked(given)
        if not torch.is_grad_enabled():
            return self.executor.step(values, train=False, training=self.training)
        loss: Tensor = _Step.apply(  # type: ignore[no-untyped-call]
            self._anchor, self.executor, values, self.training
        )
        return loss

    def whole_state(self, *, to_rank: int | None = 0) -> dict[str, Tensor] | None:
        """The plain model's state_dict, on one rank or, with None, on all; all ranks call it."""
        return full_state(self.executor, to_rank=to_rank)

    def load_whole_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state_dict of the plain model, of which each rank reads its pieces."""
        load_state(self.executor, state)

    def save(self, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Write a checkpoint that any plan, and the plain model with `dcp.load`, can go on from."""
        save_checkpoint(self.executor, Path(path), optimizer)

    def load(self, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Go on from a checkpoint."""
        load_checkpoint(self.executor, Path(path), optimizer)

    def _checked(self, given: list[Tensor]) -> dict[str, Tensor]:
        """The inputs by name, if they are what the plan is for."""
        wanted = self.executor.script.plan.graph.inputs
        if len(given) != len(wanted):
            names = ", ".join(tensor.name for tensor in wanted)
            raise InputError(
                f"the step got {counted(len(given), 'tensor')}",
                f"give {len(wanted)}, in this order: {names}",
            )
        for own, tensor in zip(given, wanted, strict=True):
            if tuple(own.shape) != tensor.shape:
                raise InputError(
                    f"input {tensor.name!r} has shape {tuple(own.shape)}, and the plan is for "
                    f"{tensor.shape}",
                    "give batches of that shape, or plan for this one",
                )
        return {t.name: own.to(self.executor.device) for t, own in zip(wanted, given, strict=True)}


class _Step(Function):
    """A whole step, whose gradients are handed out later."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, executor: Executor, values: Mapping[str, Tensor], training: bool
    ) -> Tensor:
        loss = executor.step(values, training=training)
        ctx.found = [
            (piece, piece.gradient)
            for piece in executor.parameters.pieces.values()
            if piece.gradient is not None
        ]
        return loss

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[None, None, None, None]:
        _scale([gradient for _, gradient in ctx.found], arriving[0])
        for piece, gradient in ctx.found:
            before = piece.seen.grad
            piece.seen.grad = gradient if before is None else before + gradient
        # Handed out once: what was scaled in place must not be scaled again.
        ctx.found = []
        return None, None, None, None


def _scale(gradients: list[Tensor], by: Tensor) -> None:
    """Multiply gradients, in place; by one, as mostly, costs nothing where one can look."""
    if gradients and not (by.device.type == "cpu" and by.item() == 1.0):
        torch._foreach_mul_(gradients, by)


def parallelize(
    model: nn.Module,
    plan: Plan,
    *,
    device: torch.device | str = "cpu",
    constants: Mapping[str, Tensor] | None = None,
    exact_random: bool = False,
    seed: int = 0,
    limit: Seconds = LIMIT,
) -> Parallelized:
    """The model, run by a plan on the ranks of the default process group.

    Values come from the model, each rank taking its pieces; a model on the meta device gets the
    weights that building it after `torch.manual_seed(seed)` would give it. `constants` are tensors
    that the model's forward makes by itself, by the names that the graph gives them. With
    `exact_random` dropout draws the same on any plan, and on one device; it is slower. Used as a
    context, ranks watch each other; `limit` is how long one may stand still.
    """
    _refuse_other_world(plan)
    place = torch.device(device)
    contents = plan_bytes(plan)
    agree(
        Statement(
            ranks=dist.get_world_size(),
            backend=str(dist.get_backend()),
            plan=digest(contents),
            graph=canonical_hash(plan.graph),
            dtype="as the plan says",
        ),
        place if place.type == "cuda" else None,
    )
    executor = Executor(plan, Wire(), dist.get_rank(), place, exact=exact_random)
    take_constants(executor, constants or {})
    if any(own.is_meta for own in model.parameters()):
        initialise(executor, model, seed)
    else:
        state = model.state_dict()
        load_state(executor, state, keys=state)
    return Parallelized(executor, limit)


def _refuse_other_world(plan: Plan) -> None:
    if not dist.is_initialized():
        raise InputError(
            "there is no process group",
            "start the script with torchrun and call torch.distributed.init_process_group first",
        )
    ranks, devices = dist.get_world_size(), plan.cluster.devices
    if ranks != devices:
        sizes = " x ".join(str(size) for size in plan.cluster.hierarchy)
        raise InputError(
            f"the plan is for {counted(devices, 'device')} ({sizes} of cluster "
            f"{plan.cluster.name!r}), and there are {counted(ranks, 'rank')}",
            f"start {counted(devices, 'rank')}, or plan for a cluster of {ranks}",
        )
