"""`parallelize`: a user's nn.Module run by a plan, its parameters as DTensors. Enters: a module and
a plan, on every rank. Leaves: a module that gives the loss of a batch; its parameters are DTensors
with the plain model's names and shapes, of which each rank has its pieces (`state.dtensors`).

    with meshwright.parallelize(model, plan) as model:
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches:                     # the same batch on every rank
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

A step runs forward and backward at once, micro-batch by micro-batch where the plan says so; calling
`backward` on the loss then only hands out the gradients, times whatever the loss was scaled by. A
call without targets gives the model's outputs, and runs backward when their gradients come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.randomness import draws
from meshwright.lower.data_shares import data_shares
from meshwright.lower.ownership import Holdings
from meshwright.plan.file import plan_bytes
from meshwright.plan.plan import Plan
from meshwright.run.autograd_steps import Apart, Around, LossStep, OutputStep
from meshwright.run.comm.communicator import Communicator
from meshwright.run.exec.compiled_segments import inductor
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.output_gather import OutputGather
from meshwright.run.exec.random_bits import key_of
from meshwright.run.exec.shared_statistics import counters
from meshwright.run.exec.two_passes import TwoPasses
from meshwright.run.health.consistency import Statement, agree, digest
from meshwright.run.health.watchdog import LIMIT, Watchdog
from meshwright.run.launch.gpus import placed
from meshwright.run.loop_guards import (
    as_no_grad,
    refuse_autocast,
    refuse_other_mode,
    refuse_other_place,
    refuse_penalties,
)
from meshwright.run.module_tree import PlanModule
from meshwright.run.returned_values import Returning
from meshwright.run.same_model import model_mismatch
from meshwright.run.state.checkpoint import load_checkpoint, save_checkpoint
from meshwright.run.state.constants import cast_constants, constants_of
from meshwright.run.state.dtensors import expose_as_dtensors
from meshwright.run.state.gradient_norms import Norms
from meshwright.run.state.initial_weights import initialise
from meshwright.run.state.model_state import (
    full_state,
    load_state,
    share_buffers,
    take_constants,
)
from meshwright.run.state.state_dicts import entries, named_pieces, take
from meshwright.run.step_guard import StepGuard
from meshwright.run.step_inputs import COMPARED, Entered, StepInputs, refuse_other_gradients
from meshwright.run.torch_functions import patch_torch_functions
from meshwright.run.world import broadcast_seed, refuse_other_world


class Parallelized(PlanModule):
    """A model whose steps run by a plan: what `parallelize` gives."""

    _is_accelerate_prepared = True
    """Accelerate, and with it Transformers' Trainer, wraps it in nothing (DDP)."""
    accepts_loss_kwargs = False
    """Transformers' Trainer gives calls no arguments of its own (`num_items_in_batch`)."""

    def __init__(
        self,
        model: nn.Module,
        executor: Executor,
        limit: Seconds,
        returning: Returning,
        *,
        dtensors: bool = True,
    ) -> None:
        super().__init__()
        self.executor, self._limit = executor, limit
        self._watch: Watchdog | None = None
        self._anchor = torch.zeros((), requires_grad=True)
        graph = executor.script.plan.graph
        self._shares = data_shares(executor.script)
        self._returning, self._apart = returning, cast(Apart | None, None)
        self._entering = StepInputs(
            graph, executor.device, self._shares, executor.rank, optional=returning.optional
        )
        self._gather: OutputGather | None = None
        if returning.with_loss:
            self._gather = executor.gathering(self._shares, returning.with_loss)
        self._judged = 0
        self._holdings = Holdings(executor.script)
        if dtensors and dist.get_world_size() > 1:
            expose_as_dtensors(executor, self._holdings)
        self._norms = Norms(executor, self._holdings)
        self._traced = graph.traced
        self._counters = counters(executor.script.plan, executor.buffers)
        self._draws = not executor.exact and any(map(draws, graph.operators))
        self._nothing: nn.Parameter | None = None
        self._guard = StepGuard(executor, self)
        if not self._norms.everywhere:
            refuse_penalties(executor)
        pieces = {name: piece.parameter for name, piece in named_pieces(executor)}
        self.stand_for(model, pieces, executor.buffers, graph.traced)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            # A plan may leave a device idle, and optimizers refuse to have nothing to do.
            self._nothing = nn.Parameter(torch.zeros(0, device=executor.device))

    def __enter__(self) -> Self:
        """Watch the other ranks: if one dies or stands still, all end with a sentence."""
        store = dist.distributed_c10d._get_default_store()
        self._watch = Watchdog(store, dist.get_rank(), dist.get_world_size(), limit=self._limit)
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

    def forward(self, *inputs: object, **named: object) -> Any:
        """What the model returns for a batch, of which every rank gives all, or its share of the
        samples (`data_share`); arguments by order or by name. With targets, where the plan has a
        loss function: the loss. Without them: outputs, of which a loss outside can be computed.
        """
        with as_no_grad():
            entered = self._entered(inputs, named)
            if entered.complete and not self._returning.never_loss:
                loss, outputs = self._loss(entered)
                return self._returning.of_loss(loss, outputs)
            return self._returning.of_outputs(self._outputs(entered))

    def loss(self, *inputs: object, **named: object) -> Tensor:
        """The loss of a batch alone, whatever the model returns."""
        with as_no_grad():
            return self._loss(self._entered(inputs, named))[0]

    def _entered(self, inputs: Sequence[object], named: Mapping[str, object]) -> Entered:
        refuse_autocast(self.executor.device)
        refuse_other_mode(self._traced, training=self.training)
        self._guard.refuse_changes()
        if self._watch is not None:
            self._watch.step(self.executor.steps)
        self.executor.pulse(waiting=True)
        entered = self._entering.values(inputs, named, training=self.training)
        self.executor.pulse()
        return entered

    def _loss(self, entered: Entered) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of a batch, and what is returned with it."""
        around = self._around(entered)
        outputs: Sequence[Tensor] = ()
        with self._own_draws():
            if torch.is_grad_enabled():
                step: Any = LossStep
                loss, *outputs = step.apply(self._anchor, around, entered.values, self._gather)
            else:
                loss = self.executor.step(entered.values, train=False, training=self.training)
                if self._gather is not None:
                    outputs = self.executor.outputs(self._gather, share=entered.share)
        self._ended()
        return loss, outputs

    def _around(self, entered: Entered) -> Around:
        return Around(self.executor, self.training, entered.share, self._nothing)

    def _outputs(self, entered: Entered) -> Sequence[Tensor]:
        """What the model returns for a batch without targets."""
        apart = self._passes_apart()
        around = self._around(entered)
        with self._own_draws():
            if torch.is_grad_enabled():
                step: Any = OutputStep
                outputs = step.apply(self._anchor, around, entered.values, apart)
            else:
                apart.executor.forward(entered.values, train=False, training=self.training)
                outputs = apart.executor.outputs(apart.returning, share=entered.share)
        self._ended()
        return tuple(outputs)

    def _ended(self) -> None:
        if self.training:
            for key, calls in self._counters:
                self.executor.buffers[key] += calls
        if self._watch is not None:
            # Until the next step a rank may evaluate, save or wait for data as long as it likes.
            self._watch.rest()

    def _passes_apart(self) -> Apart:
        """What runs passes apart, made when it is first needed."""
        if self._apart is None:
            if self._watch is not None:
                self._watch.rest()
            executor = TwoPasses(self.executor, self._returning.names)
            gather = executor.gathering(self._shares, self._returning.names)
            self._apart = Apart(executor, gather, self._judge, self._watched)
            if self._watch is not None:
                self._watch.step(self.executor.steps)
        return self._apart

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A backward pass, in which other ranks are expected to make progress."""
        if self._watch is not None:
            self._watch.step(self.executor.steps)
        yield
        if self._watch is not None:
            self._watch.rest()

    def _judge(self, gradients: Sequence[Tensor], share: bool) -> None:
        """Refuse gradients of outputs that differ between ranks, in the first backward passes."""
        self._judged += 1
        if self._judged <= COMPARED and dist.get_world_size() > 1:
            owners = self._shares.own if share else (0,) * dist.get_world_size()
            refuse_other_gradients(gradients, owners, self.executor.device)

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
        target = named.get("destination")
        destination: dict[str, Any] = {} if target is None else target
        prefix, keep_vars = named.get("prefix", ""), named.get("keep_vars", False)
        for name, entry in entries(self.executor, self._holdings, keep_vars=keep_vars):
            destination[prefix + name] = entry
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

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """As a part of another module: take over what is under this one's name."""
        state = {key.removeprefix(prefix): value for key, value in state_dict.items()}
        missing, extra = take(self.executor, self._holdings, state, strict=False)
        missing_keys += [prefix + key for key in missing]
        unexpected_keys += [prefix + key for key in extra]

    def to(self, *asked: Any, **named: Any) -> Self:
        """Refuse another device or dtype than the plan's; trainers ask for the same."""
        refuse_other_place(self, asked, named, self.executor.device)
        return self

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
    outputs: bool = False,
) -> Parallelized:
    """The model, run by a plan on the ranks of the default process group.

    Values come from the model, each rank taking its pieces; a model on the meta device gets the
    weights that building it after `torch.manual_seed(seed)` would give it. Buffers
    outside of its state_dict are taken from it too; `constants` are tensors that its forward makes
    by itself, by the names that the graph gives them. Random operators draw by the seed that the
    first rank's generator was given (`torch.manual_seed`), for each operator, step and sample
    the same on any plan; without `exact_random` each rank draws for itself, which is faster. Used
    as a context, ranks watch each other; `limit` is how long one may stand still. A plan whose
    pieces no DTensor can say is refused; without `dtensors` parameters are this rank's pieces as
    plain tensors, of which PyTorch's norms, dims and state dicts are wrong. With `compile` what a
    rank computes between communications is compiled by Inductor in the first step. With `outputs`
    calls that compute a loss bring together what else the model returns (logits), on every rank.
    """
    refuse_other_world(plan)
    place = placed(device)
    problem = model_mismatch(model, plan.graph)
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
    returning = Returning(plan.graph, outputs=outputs)
    executor = Executor(
        plan,
        Communicator(),
        rank,
        place,
        exact=exact_random,
        backend=backend,
        returned=returning.with_loss,
    )
    executor.seed = broadcast_seed(torch.initial_seed(), place)
    described = cast_constants(constants or {}, plan.graph)
    take_constants(executor, constants_of(model, plan.graph) | described)
    if any(parameter.is_meta for parameter in model.parameters()):
        initialise(executor, model, seed)
    else:
        state = model.state_dict()
        load_state(executor, state, keys=state)
    share_buffers(executor, model)
    module = Parallelized(model, executor, limit, returning, dtensors=dtensors)
    patch_torch_functions(module, instead_of=model)
    return module
