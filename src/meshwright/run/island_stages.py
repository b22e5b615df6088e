"""Pipeline parallelism over islands: stages of different widths, layouts and devices. Enters: a
module and an `IslandPlan` of several stages, on every rank. Leaves: a module that gives the loss of
the whole batch, of which each rank has what its own stage trains.

Ranks are numbered part by part, as where islands share a batch (`run.islands`). What happens in a
step is told in `exec.stage_passes`, what goes between islands in `comm.stage_mail`. A mean loss is
that of micro-batches, each weighted by what it counts (`sharding.loss_law`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Any, Self

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.capture.trace.user_backward import refuse_gradient_hooks
from meshwright.graph.batch import sample_dims, with_batch
from meshwright.graph.operator_graph import OperatorGraph, Spec
from meshwright.graph.stage_graph import GATE
from meshwright.plan.island_plan import IslandPart, IslandPlan, tied_weights
from meshwright.plan.plan import Plan
from meshwright.run.autograd_steps import Around, LossStep
from meshwright.run.comm.communicator import Communicator
from meshwright.run.comm.stage_mail import StageMail, stage_links
from meshwright.run.exec.across_islands import Across, Members
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.stage_passes import MicroBatch, StagePasses, StagePlace
from meshwright.run.health.watchdog import Watchdog
from meshwright.run.launch.gpus import placed
from meshwright.run.loop_guards import refuse_autocast
from meshwright.run.module_tree import PlanModule
from meshwright.run.state.constants import cast_constants, constants_of
from meshwright.run.state.model_state import full_state, load_state, names_of, take_constants
from meshwright.run.state.state_dicts import named_pieces
from meshwright.run.world import broadcast_seed
from meshwright.sharding.loss_law import loss_law, target_and_ignore_index


class OnStages(PlanModule):
    """A model whose islands are stages: what `parallelize_islands` gives for such a plan."""

    def __init__(
        self,
        model: nn.Module,
        plan: IslandPlan,
        number: int,
        executor: Executor,
        passes: StagePasses,
        mail: StageMail,
        watch: Watchdog,
    ) -> None:
        super().__init__()
        self.plan, self.executor, self._number = plan, executor, number
        self._passes, self._mail, self._watch = passes, mail, watch
        self._watching = False
        graph = plan.parts[number].plan.graph
        produced = {name for part in plan.parts for name in part.plan.graph.producers}
        self._inputs = {
            tensor.name: tensor for tensor in graph.inputs if tensor.name not in produced
        }
        self._dims = {n: d for p in plan.parts for n, d in sample_dims(p.plan.graph).items()}
        self._mean = self.part.stage == plan.stages - 1 and loss_law(graph) == "mean"
        earlier = [part.plan.graph for part in plan.parts[:number]]
        self._counted = target_and_ignore_index(graph, earlier) if self._mean else None
        self._anchor = torch.zeros((), requires_grad=True)
        self._nothing: nn.Parameter | None = None
        pieces = {name: piece.parameter for name, piece in named_pieces(self.executor)}
        self.stand_for(model, pieces, {}, graph.traced)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            self._nothing = nn.Parameter(torch.zeros(0))

    @property
    def part(self) -> IslandPart:
        """What this rank is in."""
        return self.plan.parts[self._number]

    def __enter__(self) -> Self:
        """Watch all other ranks: if one dies or stands still, all end with a sentence."""
        self._watch.__enter__()
        self._watching = True
        self.executor.pulse = self._watch.progress
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.executor.close()
        self._watch.__exit__(kind, error, trace)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The loss of a batch, of which every rank gives all."""
        refuse_autocast(self.executor.device)
        self.refuse_changed_modules()
        values = self._named(inputs, named)
        self._passes.micro = self._cut(values)
        if self._watching:
            self._watch.step(self.executor.steps)
        if torch.is_grad_enabled():
            around = Around(self._passes, self.training, share=False, nothing=self._nothing)
            step: Any = LossStep
            (loss,) = step.apply(self._anchor, around, {}, None)
        else:
            loss = self._passes.step({}, train=False, training=self.training)
        if self._watching:
            self._watch.rest()
        batch_loss: Tensor = loss
        return batch_loss

    def _named(self, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of the model, by name; those of this rank's stage are as planned."""
        names = self.plan.inputs
        if len(inputs) + len(named) != len(names) or not {*named} <= {*names[len(inputs) :]}:
            raise InputError(
                f"the model gets {counted(len(inputs), 'input')} by order and "
                f"{', '.join(named) or 'none'} by name",
                f"give {', '.join(names)} in this order",
            )
        batch = dict(zip(names, inputs, strict=False)) | dict(named)
        values = {name: value.to(self.executor.device) for name, value in batch.items()}
        for name, planned in self._inputs.items():
            if tuple(values[name].shape) != planned.shape:
                raise InputError(
                    f"input {name!r} has shape {tuple(values[name].shape)}, and in the plan "
                    f"{planned.shape}",
                    "give every rank the whole batch",
                )
        return values

    def _cut(self, values: Mapping[str, Tensor]) -> list[MicroBatch]:
        """The batch as micro-batches."""
        count = self.plan.micro_batches
        micro_batches = []
        for number in range(count):
            cut = {
                name: value
                if self._dims.get(name) is None
                else value.chunk(count, self._dims[name])[number]
                for name, value in values.items()
            }
            inputs = {name: cut[name] for name in self._inputs}
            micro_batches.append(MicroBatch(inputs, self._weight(values, cut)))
        return micro_batches

    def _weight(self, whole: Mapping[str, Tensor], micro_batch: Mapping[str, Tensor]) -> float:
        """What the loss of a micro-batch counts in that of the batch."""
        if not self._mean:
            return 1.0
        if self._counted is None:
            return 1 / self.plan.micro_batches
        name, ignored = self._counted
        total = int((whole[name] != ignored).sum())
        return int((micro_batch[name] != ignored).sum()) / max(total, 1)

    def whole_state(self) -> dict[str, Tensor] | None:
        """The plain model's state_dict on the first rank of all; all ranks call it."""
        stage_state = full_state(self.executor)
        state = {
            key: value for key, value in (stage_state or {}).items() if not key.startswith(GATE)
        }
        first, seen = 0, set[str]()
        for part in self.plan.parts:
            for name, spec in _stored(part.plan.graph).items():
                if part.stage and name not in seen:
                    is_holder = part is self.part and stage_state is not None
                    value = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))
                    value = state[name].contiguous() if is_holder else value
                    self._mail.to_first(value, first)
                    if self._mail.rank == 0:
                        state[name] = value
                seen.add(name)
            first += part.plan.cluster.devices
        return state if self._mail.rank == 0 else None


def parallelize_stages(
    model: nn.Module,
    plan: IslandPlan,
    ranks: Sequence[Members],
    rank: int,
    store: Store,
    watch: Watchdog,
    *,
    device: torch.device | str,
    constants: Mapping[str, Tensor],
) -> OnStages:
    """The module of a rank whose default process group is that of its part."""
    _refuse(model, plan)
    place, number = placed(device), next(n for n, members in enumerate(ranks) if rank in members)
    parts = [micro_batched(part.plan, plan.micro_batches) for part in plan.parts]
    wire = Communicator()
    executor = Executor(parts[number], wire, dist.get_rank(), place, exact=False)
    executor.seed = broadcast_seed(torch.initial_seed(), place)
    graph = parts[number].graph
    take_constants(executor, constants_of(model, graph) | cast_constants(constants, graph))
    state = _state_of(model, plan, number)
    load_state(executor, state, keys=state)
    mail = StageMail(ranks, rank, PrefixStore("stages", store), wire)
    tied = [
        Across(
            [parts[n] for n in stages],
            [ranks[n] for n in stages],
            rank,
            PrefixStore("_".join(map(str, stages)), store),
            str(dist.get_backend()),
            names,
        )
        for stages, names in tied_weights(plan)
        if number in stages
    ]
    links = stage_links([part.graph for part in parts])
    where = StagePlace(number, plan.stages, plan.micro_batches, links)
    passes = StagePasses(executor, where, mail, tied)
    return OnStages(model, plan, number, executor, passes, mail, watch)


def micro_batched(plan: Plan, count: int) -> Plan:
    """The plan of a stage for one of so many micro-batches."""
    options = msgspec.structs.replace(plan.options, micro_batches=1)
    return plan.changed(graph=with_batch(plan.graph, Fraction(1, count)), options=options)


def _stored(graph: OperatorGraph) -> dict[str, Spec]:
    """What a stage has of the model's parameters."""
    return {
        name: parameter.stored
        for parameter in graph.parameters
        if not parameter.tensor.name.startswith(GATE)
        for name in names_of(parameter)
    }


def _state_of(model: nn.Module, plan: IslandPlan, number: int) -> dict[str, Tensor]:
    """What a stage takes of the model's state, and zeros for its gates; the first stage also has
    what no stage reads.
    """
    graphs = [part.plan.graph for part in plan.parts]
    state, graph = model.state_dict(), graphs[number]
    stage_keys = {*_stored(graph), *(buffer.name for buffer in graph.buffers)}
    read = {name for every in graphs for name in _stored(every)}
    gates = {
        name: torch.zeros(gate.stored.shape, dtype=torch_dtype(gate.stored.dtype))
        for gate in graph.parameters
        if (name := gate.tensor.name).startswith(GATE)
    }
    taken = {
        key: state[key] for key in state if key in stage_keys or (not number and key not in read)
    }
    return taken | gates


def _refuse(model: nn.Module, plan: IslandPlan) -> None:
    """Refuse plans that are not run, and a module that is not the plan's."""
    refuse_gradient_hooks(model)
    if len(plan.parts) != plan.stages:
        raise InputError(
            f"the plan has {len(plan.parts)} parts in {plan.stages} stages",
            "run plans whose stages have one part each",
        )
    if not plan.inputs:
        raise InputError(
            "the plan does not say in which order the model takes its inputs", "plan anew"
        )
    for part in plan.parts:
        loss_law(part.plan.graph)
    known = {name for stage_part in plan.parts for name in _stored(stage_part.plan.graph)}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if name not in known:
            raise InputError(
                f"the model has a parameter {name!r}, which the plan does not know",
                "give the model that the plan was made for",
            )
        if parameter.is_meta:
            raise InputError(
                f"parameter {name!r} lies on the meta device", "build the model with its weights"
            )
