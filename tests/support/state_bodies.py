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
from meshwright.capture.execute import values_of
from meshwright.capture.export import capture
from meshwright.capture.zoo import entry
from meshwright.cluster.model import Cluster
from meshwright.graph.dtypes import in_dtype
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Plan
from meshwright.plan.options import Options
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

    def arrays(own: Mapping[str, Tensor]) -> Arrays:
        return {
            key: (v.to(real) if v.is_floating_point() else v).detach().numpy().copy()
            for key, v in own.items()
        }

    return Subject(
        in_dtype(graph, dtype),
        arrays(state),
        arrays({own.name: values[own.name] for own in graph.buffers if own.name not in state}),
        arrays({tensor.name: values[tensor.name] for tensor in graph.inputs}),
    )


def machine_of(ranks: int) -> Cluster:
    return Cluster.named("laptop", process=ranks)


def random_plan(own: Subject, ranks: int, seed: int, options: Options | None = None) -> Plan:
    """Any roles for any unit: splits of every kind, copies, and subsets of the machine."""
    rng, cluster = random.Random(seed), machine_of(ranks)
    chosen = []
    for unit in units(own.graph):
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
    return Plan.of("random", own.graph, cluster, chosen, options)


def alone(own: Subject) -> Plan:
    cluster = Cluster.named("h200", gpu=1)
    return Plan.of("one device", own.graph, cluster, [Layout(()) for _ in units(own.graph)])


def executor_of(plan: Plan, own: Subject) -> Executor:
    executor = Executor(plan, Communicator(), dist.get_rank(), device_of_rank())
    take_constants(executor, _here(own.constants))
    return executor


def _here(own: Arrays) -> dict[str, Tensor]:
    """Arrays as tensors where this rank computes."""
    return {name: value.to(device_of_rank()) for name, value in tensors(own).items()}


def differing(expected: Mapping[str, Any], found: Mapping[str, Tensor] | None) -> list[str]:
    """The keys under which two states differ in a single bit, or that only one has."""
    own = found or {}
    both = expected.keys() & own.keys()
    return sorted(
        (expected.keys() ^ own.keys())
        | {key for key in both if not np.array_equal(np.asarray(expected[key]), own[key].numpy())}
    )


def round_trips(plans: list[Plan], own: Subject) -> list[list[str]]:
    """What differs between a state and what comes back of it, for each plan."""
    found = []
    for number, plan in enumerate(plans):
        executor = executor_of(plan, own)
        load_state(executor, tensors(own.state))
        root = number % dist.get_world_size()
        one, everywhere = full_state(executor, to_rank=root), full_state(executor, to_rank=None)
        found.append(differing(own.state, everywhere))
        if (one is None) != (executor.rank != root):
            found[-1].append("there is a state on another rank than asked")
        if one is not None:
            found[-1] += differing(own.state, one)
        executor.close()
    return found


def trained(executor: Executor, own: Subject, optimizer: torch.optim.Optimizer | None) -> None:
    """One step of training."""
    executor.step(_here(own.inputs))
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
        {"params": [own for key, own in named if key.endswith("weight") == weight], "lr": rate}
        for weight, rate in ((True, 1e-2), (False, 2e-2))
    ]
    if kind == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def whole_optimizer(executor: Executor, optimizer: torch.optim.Optimizer | None) -> Arrays:
    """What all ranks' optimizers remember, put together on all of them by way of objects."""
    state = sharded_optimizer_state(executor, optimizer)
    assert state is not None
    own: dict[str, Any] = {}
    for name, fields in state["state"].items():
        for key, value in fields.items():
            if isinstance(value, Sharded):
                own[f"{name}.{key}"] = (
                    tuple(value.shape),
                    [(c.box, c.data.cpu().numpy().copy()) for c in value.chunks],
                )
            else:
                own[f"{name}.{key}"] = ((), [((), value.cpu().numpy().copy())])
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own)
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
    plan: Plan, own: Subject, path: str, kind: str = "adam"
) -> tuple[Saved, Saved]:
    """Two steps and a checkpoint of them; and one step more."""
    executor = executor_of(plan, own)
    load_state(executor, tensors(own.state))
    optimizer = optimizer_of(executor, kind)
    for _ in range(2):
        trained(executor, own, optimizer)
    save_checkpoint(executor, path, optimizer)
    before = _saved(executor, optimizer)
    trained(executor, own, optimizer)
    after = _saved(executor, optimizer)
    executor.close()
    return before, after


def goes_on(
    plan: Plan, own: Subject, path: str, kind: str = "adam", again: str = ""
) -> tuple[Saved, Saved]:
    """What a plan has from a checkpoint, and after one more step; perhaps saved again."""
    executor = executor_of(plan, own)
    optimizer = optimizer_of(executor, kind)
    load_checkpoint(executor, path, optimizer)
    if again:
        save_checkpoint(executor, again, optimizer)
    before = _saved(executor, optimizer)
    trained(executor, own, optimizer)
    after = _saved(executor, optimizer)
    executor.close()
    return before, after


def refused(plan: Plan, own: Subject, action: str, *arguments: Any) -> str:
    """The sentence by which a rank refuses something."""
    executor = executor_of(plan, own)
    try:
        match action:
            case "state":
                load_state(executor, tensors(arguments[0]))
            case "load":
                load_checkpoint(executor, arguments[0])
            case "load optimizer":
                load_checkpoint(executor, arguments[0], optimizer_of(executor, arguments[1]))
            case "save":
                load_state(executor, tensors(own.state))
                save_checkpoint(executor, arguments[0])
            case "compute":
                load_state(executor, tensors(own.state))
                next(iter(sharded_state(executor).values())) + 1  # type: ignore[operator]
    except InputError as error:
        return str(error)
    finally:
        executor.close()
    return "nothing was refused"


def initial(plans: list[Plan], own: Subject, name: str, seed: int) -> list[list[str]]:
    """What differs between weights drawn in pieces and those of a module that is constructed."""

    def built() -> torch.nn.Module:
        return entry(name).example(entry(name).tiny, 2).model

    torch.manual_seed(seed)
    expected = built().state_dict()
    with torch.device("meta"):
        module = built()
    before = torch.get_rng_state()
    found = []
    for plan in plans:
        executor = executor_of(plan, own)
        initialise(executor, module, seed)
        found.append(differing(expected, full_state(executor, to_rank=None)))
        executor.close()
    assert all(p.is_meta for p in module.parameters()), "the module stays as it is"
    assert torch.equal(before, torch.get_rng_state()), "nobody else's random numbers change"
    return found


def initial_refused(plan: Plan, own: Subject, name: str) -> str:
    """Why a module's weights cannot be drawn in pieces."""
    with torch.device("meta"):
        module = entry(name).example(entry(name).tiny, 2).model
    executor = executor_of(plan, own)
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
        told = get_optimizer_state_dict(self.module, self.optimizer)
        return {"model": self.module.state_dict(), "optim": told}

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
    return Plain(module, _grouped([(key, own) for key, own in named], kind))


def plain_reads(name: str, path: str, kind: str) -> Saved:
    """What a plain script reads of a checkpoint."""
    torch.manual_seed(8)
    own = _plain(name, kind)
    state = own.state()
    load(state, checkpoint_id=path)
    own.module.load_state_dict(state["model"])
    set_optimizer_state_dict(own.module, own.optimizer, state["optim"])
    return own.saved()


def plain_writes(name: str, path: str, kind: str) -> Saved:
    """A checkpoint of a plain script, whose optimizer has done a step."""
    torch.manual_seed(9)
    own = _plain(name, kind)
    for parameter in own.module.parameters():
        parameter.grad = torch.randn_like(parameter)
    own.optimizer.step()
    save(own.state(), checkpoint_id=path)
    return own.saved()


def fails_to_save(plan: Plan, own: Subject, path: str) -> str:
    """What a rank says whose optimizer remembers something that cannot be written."""
    executor = executor_of(plan, own)
    load_state(executor, tensors(own.state))
    optimizer = optimizer_of(executor, "adam")
    assert optimizer is not None
    trained(executor, own, optimizer)
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


def loads_a_file(plan: Plan, own: Subject, path: str) -> list[str]:
    """What differs after a state was taken from a file that is not read as a whole."""
    executor = executor_of(plan, own)
    load_state(executor, torch.load(path, mmap=True))
    found = differing(own.state, full_state(executor, to_rank=None))
    executor.close()
    return found
