"""A plan inside the user's own training script. Enters: a module and a plan, on every rank.
Leaves: a module that gives the loss of a batch; its parameters are DTensors with the plain model's
names and shapes, of which each rank has its pieces (`state.dtensors`).

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

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.modules.module import _IncompatibleKeys

from meshwright.base.errors import InputError
from meshwright.base.units import Seconds, counted
from meshwright.capture.own_backward import refuse_parameter_hooks
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.chance import draws
from meshwright.lower.data_shares import data_shares
from meshwright.lower.ownership import Holdings
from meshwright.plan.file import plan_bytes
from meshwright.plan.model import Plan
from meshwright.run.comm.communicator import Wire
from meshwright.run.exec.compiled_segments import inductor
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.random_bits import key_of
from meshwright.run.health.consistency import Statement, agree, digest
from meshwright.run.health.watchdog import LIMIT, Watch
from meshwright.run.library_calls import know
from meshwright.run.module_tree import Snapshot, hooked, plant
from meshwright.run.same_model import other_model
from meshwright.run.state.checkpoint import load_checkpoint, save_checkpoint
from meshwright.run.state.constants import as_described, constants_of
from meshwright.run.state.dtensors import expose
from meshwright.run.state.gradient_norms import Norms
from meshwright.run.state.initial_weights import initialise
from meshwright.run.state.model_state import full_state, load_state, take_constants
from meshwright.run.state.state_dicts import entries, named_pieces, take
from meshwright.run.step_inputs import Entering


class Parallelized(nn.Module):
    """A model whose steps run by a plan: what `parallelize` gives."""

    def __init__(self, executor: Executor, limit: Seconds, *, dtensors: bool = True) -> None:
        super().__init__()
        self.executor, self._limit = executor, limit
        self._watch: Watch | None = None
        self._anchor = torch.zeros((), requires_grad=True)
        graph = executor.script.plan.graph
        self._shares = data_shares(executor.script)
        self._entering = Entering(graph, executor.device, self._shares, executor.rank)
        self._holdings = Holdings(executor.script)
        if dtensors and dist.get_world_size() > 1:
            expose(executor, self._holdings)
        self._norms = Norms(executor, self._holdings)
        self._traced = graph.traced
        self._counters = _counters(executor)
        self._draws = not executor.exact and any(map(draws, graph.operators))
        for name, piece in named_pieces(executor):
            plant(self, name, piece.parameter)
        for name, buffer in executor.buffers.items():
            plant(self, name, buffer)
        self._nothing: nn.Parameter | None = None
        if not any(own.requires_grad for own in self.parameters()):
            # A plan may leave a device idle, and optimizers refuse to have nothing to do.
            self._nothing = nn.Parameter(torch.zeros(0, device=executor.device))

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
        """The loss of a batch, of which every rank gives all, or its share of the samples
        (`data_share`); arguments by order or by name.
        """
        self._refuse_other_mode()
        self._refuse_changed_parameters()
        if self._watch is not None:
            self._watch.step(self.executor.steps)
        self.executor.pulse(waiting=True)
        values = self._entering.values(inputs, named, training=self.training)
        self.executor.pulse()
        with self._own_draws():
            if torch.is_grad_enabled():
                loss: Tensor = _Step.apply(self._anchor, self, values)  # type: ignore[no-untyped-call]
            else:
                loss = self.executor.step(values, train=False, training=self.training)
        if self.training:
            for key, calls in self._counters:
                self.executor.buffers[key] += calls
        if self._watch is not None:
            # Until the next step a rank may evaluate, save or wait for data as long as it likes.
            self._watch.rest()
        return loss

    @property
    def data_share(self) -> tuple[int, int]:
        """Into how many shares ranks cut the samples of a batch, and which one this rank reads:
        `num_replicas` and `rank` of a `DistributedSampler`, for batches of as many times fewer.
        """
        return self._shares.shares, self._shares.own[self.executor.rank]

    @property
    def norms_of_some(self) -> bool:
        """Whether PyTorch's own norm of some gradients is right here."""
        return self._norms.everywhere

    def grad_norm(self, norm_type: float = 2.0, *, error_if_nonfinite: bool = False) -> Tensor:
        """The norm of all gradients, as of one device's; all ranks call it, and get the same."""
        return self._norms.norm(float(norm_type), error_if_nonfinite=error_if_nonfinite)

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the gradients by their norm over all ranks, which is returned; all ranks call it."""
        kind = float(norm_type)
        return self._norms.clip(float(max_norm), kind, error_if_nonfinite=error_if_nonfinite)

    def whole_state(self, *, to_rank: int | None = 0) -> dict[str, Tensor] | None:
        """The plain model's state_dict, on one rank or, with None, on all; all ranks call it."""
        return full_state(self.executor, to_rank=to_rank)

    def load_whole_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state_dict of the plain model, of which each rank reads its pieces."""
        load_state(self.executor, state)

    def state_dict(self, *_: Any, **named: Any) -> dict[str, Any]:  # type: ignore[override]
        """The plain model's names with DTensors, or what else DCP knows as the whole tensors."""
        destination: dict[str, Any] = named.get("destination") or {}
        prefix, keep_vars = named.get("prefix", ""), named.get("keep_vars", False)
        for name, own in entries(self.executor, self._holdings, keep_vars=keep_vars):
            destination[prefix + name] = own
        return destination

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over a state_dict of this module, or of the plain one, of which each rank cuts its
        pieces.
        """
        if assign:
            raise InputError("assign=True is asked of a plan's parameters", "leave it away")
        return _IncompatibleKeys(*take(self.executor, self._holdings, state_dict, strict=strict))

    def __deepcopy__(self, _: object) -> Snapshot:
        """Copies of the parameters and buffers of this rank, for averages (EMA): they take part in
        no step. `load_state_dict` takes their state_dict.
        """
        pieces = {name: piece.parameter for name, piece in named_pieces(self.executor)}
        return Snapshot(pieces, self.executor.buffers)

    def save(self, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Write a checkpoint that any plan, and the plain model with `dcp.load`, can go on from."""
        save_checkpoint(self.executor, Path(path), optimizer)

    def load(self, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Go on from a checkpoint."""
        load_checkpoint(self.executor, Path(path), optimizer)

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Where each rank draws for itself, have it draw others than ranks with the same seed."""
        if not self._draws:
            yield
            return
        executor = self.executor
        key = key_of(executor.seed, executor.steps, f"rank {executor.rank}")
        with torch.random.fork_rng([executor.device] if executor.device.type == "cuda" else []):
            torch.manual_seed(key)
            yield

    def _refuse_other_mode(self) -> None:
        """Refuse the mode that was not traced, where the graph does not compute it."""
        traced = self._traced
        if traced is not None and traced.other_mode and self.training is not traced.training:
            call = "train" if traced.training else "eval"
            raise InputError(
                f"the plan was made in {traced.mode} mode; {traced.other_mode}",
                f"stay in {traced.mode} mode with model.{call}(), and do the rest with the plain "
                "model and whole_state(), or with a plan of its own",
            )

    def _refuse_changed_parameters(self) -> None:
        """Refuse what was done to parameters since, and no plan does: freezing, hooks."""
        graph = self.executor.script.plan.graph
        for own in graph.parameters:
            piece = self.executor.parameters.pieces.get(own.tensor.name)
            if piece is None:
                continue
            if piece.parameter.requires_grad is not own.trainable:
                raise InputError(
                    f"requires_grad of {piece.name!r} is {piece.parameter.requires_grad} now, and "
                    f"in the plan {own.trainable}",
                    "freeze parameters before the model is captured and planned for",
                )
            if piece.moved:
                raise InputError(
                    f"{piece.name!r} has got other memory, which the plan's steps do not read",
                    "change parameters in place (under torch.no_grad(), with copy_), and say "
                    "device and dtype when the model is planned and parallelized",
                )
            refuse_parameter_hooks(piece.name, piece.parameter)
        for name in hooked(self):
            raise InputError(
                f"module {name!r} has a hook, which a plan's step does not call",
                "hang forward hooks that change outputs on the model before it is captured, and "
                "others on the whole module",
            )


def _counters(executor: Executor) -> tuple[tuple[str, int], ...]:
    """The counters of batch norms, and by how much a step in training advances each."""
    plan, found = executor.script.plan, Counter[str]()
    for own in plan.graph.operators:
        statistic = own.inputs[3] if own.kind == "batch_norm" and len(own.inputs) > 3 else None
        if statistic is not None and dict(own.attributes).get("training", True):
            found[statistic.removesuffix("running_mean") + "num_batches_tracked"] += 1
    times = plan.options.micro_batches
    return tuple((key, times * n) for key, n in found.items() if key in executor.buffers)


class _Step(Function):
    """A whole step, whose gradients are handed out later."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, module: Parallelized, values: Mapping[str, Tensor]
    ) -> Tensor:
        executor = module.executor
        loss = executor.step(values, training=module.training)
        ctx.found = [
            (piece, piece.gradient)
            for piece in executor.parameters.pieces.values()
            if piece.gradient is not None
        ]
        # Theirs alone: a loop that forgets its gradients gets their memory back.
        for piece, _ in ctx.found:
            piece.gradient = None
        ctx.handed_out, ctx.nothing = False, module._nothing
        return loss

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[None, None, None]:
        if ctx.handed_out:
            raise InputError(
                "backward was called again on a loss whose gradients were handed out",
                "call the model again for another backward pass, or add up losses and call "
                "backward once",
            )
        _scale([gradient for _, gradient in ctx.found], arriving[0])
        for piece, gradient in ctx.found:
            piece.hand_out(gradient)
        # What was scaled in place must not be scaled again.
        ctx.found, ctx.handed_out = [], True
        if ctx.nothing is not None:
            # A rank without gradients takes part in their norm.
            ctx.nothing.grad = torch.zeros_like(ctx.nothing)
        return None, None, None


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
    exact_random: bool = True,
    seed: int = 0,
    limit: Seconds = LIMIT,
    dtensors: bool = True,
    compile: bool = False,  # noqa: A002 as torch says
) -> Parallelized:
    """The model, run by a plan on the ranks of the default process group.

    Values come from the model, each rank taking its pieces; a model on the meta device gets the
    weights that building it after `torch.manual_seed(seed)` would give it. Buffers
    outside of its state_dict are taken from it too; `constants` are tensors that its forward makes
    by itself, by the names that the graph gives them. Random operators draw by the seed that the
    first rank's generator was given (`torch.manual_seed`), for each operator, step and sample
    the same on any plan; without `exact_random` each rank draws for itself, which is faster. Used
    as a context, ranks watch each other; `limit` is how long one may stand still. Without
    `dtensors` parameters are this rank's pieces as plain tensors. With `compile` what a rank
    computes between communications is compiled by Inductor in the first step.
    """
    _refuse_other_world(plan)
    place = torch.device(device)
    problem = other_model(model, plan.graph)
    contents = plan_bytes(plan)
    agree(
        Statement(
            ranks=dist.get_world_size(),
            backend=str(dist.get_backend()),
            plan=digest(contents),
            graph=canonical_hash(plan.graph),
            dtype="as the plan says",
            extra="" if problem is None else "a model that is not the plan's",
        ),
        place if place.type == "cuda" else None,
    )
    if problem is not None:
        raise problem
    backend = inductor if compile else None
    rank = dist.get_rank()
    executor = Executor(plan, Wire(), rank, place, exact=exact_random, backend=backend)
    executor.seed = _first_ranks(torch.initial_seed(), place)
    given = as_described(constants or {}, plan.graph)
    take_constants(executor, constants_of(model, plan.graph) | given)
    if any(own.is_meta for own in model.parameters()):
        initialise(executor, model, seed)
    else:
        state = model.state_dict()
        load_state(executor, state, keys=state)
    module = Parallelized(executor, limit, dtensors=dtensors).train(model.training)
    know(module)
    return module


def _first_ranks(seed: int, device: torch.device) -> int:
    """The seed of the first rank, for all."""
    on = device if dist.get_backend() == "nccl" else torch.device("cpu")
    told = torch.tensor([seed % (1 << 63)], dtype=torch.int64, device=on)
    dist.broadcast(told, 0)
    return int(told.item())


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
