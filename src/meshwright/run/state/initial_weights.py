"""Deferred initialisation (meta device): each rank keeps only its shards of the weights. Enters: a
module, which may lie on the meta device, and a seed. Leaves: this rank's pieces of the weights that
constructing it would give.

Modules draw their weights in `reset_parameters`, one after the other. Each is filled by itself,
cut and dropped; all ranks draw the same. A tied weight is drawn by each of its modules and is that
of the first. Weights that a model draws in ways of its own have to come from a checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.lower.ownership import Holdings
from meshwright.run.comm.resharding import cut
from meshwright.run.exec.executor import Executor
from meshwright.run.state.model_state import names_of, refuse_state_mismatch, region_of, spec_of

RESET = "reset_parameters"
OWN_WAYS = ("_init_weights", "init_weights")
"""Methods by which models draw weights anew after construction."""

REMEDY = "load a checkpoint, or build the module on a real device and load its state_dict"


def initialise(executor: Executor, module: nn.Module, seed: int) -> None:
    """Give an executor the weights that a module has if constructed after `manual_seed(seed)`."""
    _refuse_own_ways(module)
    specs = {key: spec_of(value) for key, value in module.state_dict().items()}
    refuse_state_mismatch(executor, specs, "the module", specs)
    holdings, graph = Holdings(executor.script), executor.script.plan.graph
    read = {n: parameter.tensor.name for parameter in graph.parameters for n in names_of(parameter)}
    for key, value in drawn(module, seed):
        name = read.get(key, key)
        if name not in executor.script.parallel.made:
            names = [alias for alias in specs if read.get(alias, alias) == name]
            executor.buffers |= {alias: value.to(executor.device) for alias in names}
        elif name in executor.parameters.pieces:
            seen = executor.parameters.pieces[name].seen
            for region in holdings.regions(name, executor.rank):
                region_of(seen, region).copy_(cut(value, region.box))


def drawn(module: nn.Module, seed: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a module's state, each once and with its value at construction.

    >>> with torch.device("meta"):
    ...     linear = nn.Linear(2, 1)
    >>> _ = torch.manual_seed(7)
    >>> expected = nn.Linear(2, 1).state_dict()
    >>> [(name, torch.equal(value, expected[name])) for name, value in drawn(linear, 7)]
    [('weight', True), ('bias', True)]
    """
    kept, known = module.state_dict(keep_vars=True), set[int]()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for path, submodule in module.named_modules():
            for name, value in _filled(submodule).items():
                key = f"{path}.{name}" if path else name
                if key in kept and id(kept[key]) not in known:
                    known.add(id(kept[key]))
                    if _unset(value):
                        raise InputError(f"{RESET} leaves {key!r} without a value", REMEDY)
                    yield key, value


def _filled(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters and buffers after `reset_parameters`; the module stays as it is."""
    twin = copy.copy(module)
    parameters = {n: p for n, p in module._parameters.items() if p is not None}
    twin.__dict__["_parameters"] = {
        **dict.fromkeys(module._parameters),
        **{
            name: nn.Parameter(_blank(parameter), parameter.requires_grad)
            for name, parameter in parameters.items()
        },
    }
    twin.__dict__["_buffers"] = {
        name: buffer if buffer is None else _blank(buffer) if buffer.is_meta else buffer.clone()
        for name, buffer in module._buffers.items()
    }
    reset = getattr(twin, RESET, None)
    if reset is not None and (parameters or twin._buffers):
        reset()
    return {
        name: tensor.detach()
        for name, tensor in (*twin._parameters.items(), *twin._buffers.items())
        if tensor is not None
    }


def _blank(tensor: Tensor) -> Tensor:
    """A tensor of which every number says that nobody has set it."""
    return torch.full(tensor.shape, _nothing(tensor.dtype), dtype=tensor.dtype)


def _nothing(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min


def _unset(value: Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return bool(value.isnan().any())
    return value.dtype != torch.bool and bool((value == _nothing(value.dtype)).any())


def _refuse_own_ways(module: nn.Module) -> None:
    """Weights that are drawn elsewhere than in `reset_parameters` are not known here."""
    for path, submodule in module.named_modules():
        where = f"module {path!r} of type {type(submodule).__name__}"
        has = any(parameter is not None for parameter in submodule._parameters.values())
        if has and getattr(submodule, RESET, None) is None:
            raise InputError(f"{where} has parameters and no {RESET}", REMEDY)
        for name in OWN_WAYS:
            if getattr(submodule, name, None) is not None:
                raise InputError(f"{where} draws its weights in {name}", REMEDY)
