"""What ranks do in tests of state and checkpoints, and the models and plans for them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.reference_executor import values_of
from meshwright.capture.zoo import entry
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.comm.communicator import Communicator
from meshwright.run.exec.executor import Executor
from meshwright.run.launch.gpus import device_of_rank
from meshwright.run.state.checkpoint import load_checkpoint, save_checkpoint, sharded_state
from meshwright.run.state.initial_weights import initialise
from meshwright.run.state.model_state import full_state, load_state, take_constants
from meshwright.run.state.optimizer_state import sharded_optimizer_state
from meshwright.run.state.sharded import Sharded
from meshwright.run.step import real_example
from meshwright.sharding.layout import Layout, checked_layout, factors
from meshwright.sharding.units import units
from support.executed import Arrays, tensors


class Subject(NamedTuple):
    """A tiny model of the zoo in float64, with its state."""

    graph: OperatorGraph
    state: Arrays
    """As its state_dict has it."""
    constants: Arrays
    inputs: Arrays


@cache
def subject(name: str, batch: int = 4, dtype: str = "float64") -> Subject:
    torch.manual_seed(3)
    example = real_example(name, batch, torch.device("cpu"), tiny=True)
    graph, real = capture(example, name), getattr(torch, dtype)
    values, state = values_of(example, graph), example.model.state_dict()

    def arrays(named_tensors: Mapping[str, Tensor]) -> Arrays:
        return {
            key: (v.to(real) if v.is_floating_point() else v).detach().numpy().copy()
            for key, v in named_tensors.items()
        }

    return Subject(
        cast_graph(graph, dtype),
        arrays(state),
        arrays(
            {
                buffer.name: values[buffer.name]
                for buffer in graph.buffers
                if buffer.name not in state
            }
        ),
        arrays({tensor.name: values[tensor.name] for tensor in graph.inputs}),
    )


def machine_of(ranks: int) -> Cluster:
    return Cluster.named("laptop", process=ranks)


def random_plan(subject: Subject, ranks: int, seed: int, options: Options | None = None) -> Plan:
    """Any roles for any unit: splits of every kind, copies, and subsets of the machine."""
    rng, cluster = random.Random(seed), machine_of(ranks)
    chosen = []
    for unit in units(subject.graph):
        layout = None
        while layout is None:
            roles = [
                rng.choice([*unit.extents, *unit.extents, "replica", f"@{rng.randrange(f.size)}"])
                for f in factors(cluster)
            ]
            try:
                layout = Layout(tuple(roles))
                checked_layout(layout, unit.extents, factors(cluster), "a unit")
            except InputError:
                layout = None
        chosen.append(layout)
    return Plan.of("random", subject.graph, cluster, chosen, options)


def alone(subject: Subject) -> Plan:
    cluster = Cluster.named("h200", gpu=1)
    return Plan.of("one device", subject.graph, cluster, [Layout(()) for _ in units(subject.graph)])


def executor_of(plan: Plan, subject: Subject) -> Executor:
    executor = Executor(plan, Communicator(), dist.get_rank(), device_of_rank())
    take_constants(executor, _here(subject.constants))
    return executor


def _here(arrays: Arrays) -> dict[str, Tensor]:
    """Arrays as tensors where this rank computes."""
    return {name: value.to(device_of_rank()) for name, value in tensors(arrays).items()}


def differing(expected: Mapping[str, Any], actual: Mapping[str, Tensor] | None) -> list[str]:
    """The keys under which two states differ in a single bit, or that only one has."""
    state = actual or {}
    both = expected.keys() & state.keys()
    return sorted(
        (expected.keys() ^ state.keys())
        | {key for key in both if not np.array_equal(np.asarray(expected[key]), state[key].numpy())}
    )


def round_trips(plans: list[Plan], subject: Subject) -> list[list[str]]:
    """What differs between a state and what comes back of it, for each plan."""
    differences = []
    for number, plan in enumerate(plans):
        executor = executor_of(plan, subject)
        load_state(executor, tensors(subject.state))
        root = number % dist.get_world_size()
        one, everywhere = full_state(executor, to_rank=root), full_state(executor, to_rank=None)
        differences.append(differing(subject.state, everywhere))
        if (one is None) != (executor.rank != root):
            differences[-1].append("there is a state on another rank than asked")
        if one is not None:
            differences[-1] += differing(subject.state, one)
        executor.close()
    return differences


def trained(executor: Executor, subject: Subject, optimizer: torch.optim.Optimizer | None) -> None:
    """One step of training."""
    executor.step(_here(subject.inputs))
    executor.wire.finish()
    for piece in executor.parameters.pieces.values():
        piece.seen.grad = piece.gradient
    if optimizer is not None:
        optimizer.step()


def optimizer_of(executor: Executor, kind: str) -> torch.optim.Optimizer | None:
    """One over two groups, of which the rank may have no parameter."""
    pieces = [p for p in executor.parameters.pieces.values() if p.seen.requires_grad]
    return _grouped([(p.name, p.seen) for p in pieces], kind) if pieces else None


def _grouped(named: list[tuple[str, torch.nn.Parameter]], kind: str) -> torch.optim.Optimizer:
    groups = [
        {
            "params": [parameter for key, parameter in named if key.endswith("weight") == weight],
            "lr": rate,
        }
        for weight, rate in ((True, 1e-2), (False, 2e-2))
    ]
    if kind == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def whole_optimizer(executor: Executor, optimizer: torch.optim.Optimizer | None) -> Arrays:
    """What all ranks' optimizers remember, put together on all of them by way of objects."""
    state = sharded_optimizer_state(executor, optimizer)
    assert state is not None
    rank_state: dict[str, Any] = {}
    for name, fields in state["state"].items():
        for key, value in fields.items():
            if isinstance(value, Sharded):
                rank_state[f"{name}.{key}"] = (
                    tuple(value.shape),
                    [(c.box, c.data.cpu().numpy().copy()) for c in value.chunks],
                )
            else:
                rank_state[f"{name}.{key}"] = ((), [((), value.cpu().numpy().copy())])
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, rank_state)
    whole: Arrays = {}
    for ranks in everybody:
        for key, (shape, chunks) in ranks.items():
            into = whole.setdefault(key, np.full(shape, np.nan))
            for box, data in chunks:
                into[tuple(slice(a, b) for a, b in box)] = data
    return whole


class Saved(NamedTuple):
    """A state and what an optimizer remembers, whole."""

    state: Arrays
    optimizer: Arrays
    steps: int


def _saved(executor: Executor, optimizer: torch.optim.Optimizer | None) -> Saved:
    whole = full_state(executor, to_rank=None)
    assert whole is not None
    return Saved(
        {key: value.cpu().numpy().copy() for key, value in whole.items()},
        whole_optimizer(executor, optimizer),
        executor.steps,
    )


def trains_and_saves(
    plan: Plan, subject: Subject, path: str, kind: str = "adam"
) -> tuple[Saved, Saved]:
    """Two steps and a checkpoint of them; and one step more."""
    executor = executor_of(plan, subject)
    load_state(executor, tensors(subject.state))
    optimizer = optimizer_of(executor, kind)
    for _ in range(2):
        trained(executor, subject, optimizer)
    save_checkpoint(executor, path, optimizer)
    before = _saved(executor, optimizer)
    trained(executor, subject, optimizer)
    after = _saved(executor, optimizer)
    executor.close()
    return before, after


def goes_on(
    plan: Plan, subject: Subject, path: str, kind: str = "adam", again: str = ""
) -> tuple[Saved, Saved]:
    """What a plan has from a checkpoint, and after one more step; perhaps saved again."""
    executor = executor_of(plan, subject)
    optimizer = optimizer_of(executor, kind)
    load_checkpoint(executor, path, optimizer)
    if again:
        save_checkpoint(executor, again, optimizer)
    before = _saved(executor, optimizer)
    trained(executor, subject, optimizer)
    after = _saved(executor, optimizer)
    executor.close()
    return before, after


def refused(plan: Plan, subject: Subject, action: str, *arguments: Any) -> str:
    """The sentence by which a rank refuses something."""
    executor = executor_of(plan, subject)
    try:
        match action:
            case "state":
                load_state(executor, tensors(arguments[0]))
            case "load":
                load_checkpoint(executor, arguments[0])
            case "load optimizer":
                load_checkpoint(executor, arguments[0], optimizer_of(executor, arguments[1]))
            case "save":
                load_state(executor, tensors(subject.state))
                save_checkpoint(executor, arguments[0])
            case "compute":
                load_state(executor, tensors(subject.state))
                next(iter(sharded_state(executor).values())) + 1  # type: ignore[operator]
    except InputError as error:
        return str(error)
    finally:
        executor.close()
    return "nothing was refused"


def initial(plans: list[Plan], subject: Subject, name: str, seed: int) -> list[list[str]]:
    """What differs between weights drawn in pieces and those of a module that is constructed."""

    def built() -> torch.nn.Module:
        return entry(name).example(entry(name).tiny, 2).model

    torch.manual_seed(seed)
    expected = built().state_dict()
    with torch.device("meta"):
        module = built()
    before = torch.get_rng_state()
    differences = []
    for plan in plans:
        executor = executor_of(plan, subject)
        initialise(executor, module, seed)
        differences.append(differing(expected, full_state(executor, to_rank=None)))
        executor.close()
    assert all(p.is_meta for p in module.parameters()), "the module stays as it is"
    assert torch.equal(before, torch.get_rng_state()), "nobody else's random numbers change"
    return differences


def initial_refused(plan: Plan, subject: Subject, name: str) -> str:
    """Why a module's weights cannot be drawn in pieces."""
    with torch.device("meta"):
        module = entry(name).example(entry(name).tiny, 2).model
    executor = executor_of(plan, subject)
    try:
        initialise(executor, module, 1)
    except InputError as error:
        return str(error)
    finally:
        executor.close()
    return "nothing was refused"


class Plain(NamedTuple):
    """A module as a script without Meshwright has it."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def state(self) -> dict[str, Any]:
        """As torch's tutorials save it."""
        optim_state = get_optimizer_state_dict(self.module, self.optimizer)
        return {"model": self.module.state_dict(), "optim": optim_state}

    def saved(self) -> Saved:
        whole = self.state()
        optimizer = {
            f"{name}.{key}": np.asarray(value)
            for name, fields in whole["optim"]["state"].items()
            for key, value in fields.items()
        }
        arrays = {key: value.numpy().copy() for key, value in whole["model"].items()}
        return Saved(arrays, optimizer, 0)


def _plain(name: str, kind: str) -> Plain:
    module = entry(name).example(entry(name).tiny, 4).model.double()
    named = list(module.named_parameters())
    return Plain(module, _grouped([(key, parameter) for key, parameter in named], kind))


def plain_reads(name: str, path: str, kind: str) -> Saved:
    """What a plain script reads of a checkpoint."""
    torch.manual_seed(8)
    plain = _plain(name, kind)
    state = plain.state()
    load(state, checkpoint_id=path)
    plain.module.load_state_dict(state["model"])
    set_optimizer_state_dict(plain.module, plain.optimizer, state["optim"])
    return plain.saved()


def plain_writes(name: str, path: str, kind: str) -> Saved:
    """A checkpoint of a plain script, whose optimizer has done a step."""
    torch.manual_seed(9)
    plain = _plain(name, kind)
    for parameter in plain.module.parameters():
        parameter.grad = torch.randn_like(parameter)
    plain.optimizer.step()
    save(plain.state(), checkpoint_id=path)
    return plain.saved()


def fails_to_save(plan: Plan, subject: Subject, path: str) -> str:
    """What a rank says whose optimizer remembers something that cannot be written."""
    executor = executor_of(plan, subject)
    load_state(executor, tensors(subject.state))
    optimizer = optimizer_of(executor, "adam")
    assert optimizer is not None
    trained(executor, subject, optimizer)
    if executor.rank == 1:
        first = next(iter(optimizer.state.values()))
        first["unwritable"] = lambda: None
    try:
        save_checkpoint(executor, path, optimizer)
    except InputError as error:
        return str(error)
    finally:
        executor.close()
    return "it was saved"


def loads_a_file(plan: Plan, subject: Subject, path: str) -> list[str]:
    """What differs after a state was taken from a file that is not read as a whole."""
    executor = executor_of(plan, subject)
    load_state(executor, torch.load(path, mmap=True))
    differences = differing(subject.state, full_state(executor, to_rank=None))
    executor.close()
    return differences
