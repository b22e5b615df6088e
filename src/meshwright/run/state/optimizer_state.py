"""Sharded optimizer state_dict in checkpoints (as `get_optimizer_state_dict` has it). Enters: an
executor and the optimizer of its pieces. Leaves: a state with the plain module's names and whole
shapes, as torch's `get_optimizer_state_dict` has it; or an optimizer that goes on from one.

What has a number for each element of a parameter is cut as the parameter is; single numbers, as
how many steps were done, are alike on all ranks. Groups of parameters go by their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from meshwright.base.errors import InputError
from meshwright.lower.ownership import Holdings
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import ParameterPiece, laid_out, local_part
from meshwright.run.state.sharded import Sharded

GROUPS, STATE = "optim.param_groups.", "optim.state."
"""How their keys begin in a checkpoint."""


def sharded_optimizer_state(
    executor: Executor, optimizer: Optimizer | None
) -> dict[str, Any] | None:
    """An optimizer's state with this rank's part of each tensor; None if no rank has any.

    All ranks take part; one that has no parameters has no optimizer.
    """
    groups = _groups_everywhere(executor, optimizer)
    if groups is None:
        return None
    holdings = Holdings(executor.script)
    state: dict[str, dict[str, object]] = {}
    for piece in _optimized(executor, optimizer):
        assert optimizer is not None
        entries = {
            key: _cut(executor, holdings, piece, key, value)
            for key, value in optimizer.state[piece.parameter].items()
        }
        if entries:
            state[piece.name] = entries
    return {"state": state, "param_groups": groups}


def _optimized(executor: Executor, optimizer: Optimizer | None) -> list[ParameterPiece]:
    groups = [] if optimizer is None else optimizer.param_groups
    known = {id(parameter) for group in groups for parameter in group["params"]}
    return [piece for piece in executor.parameters.pieces.values() if id(piece.parameter) in known]


def _groups_everywhere(
    executor: Executor, optimizer: Optimizer | None
) -> list[dict[str, Any]] | None:
    """The settings of each group, with the names of all ranks' parameters in it."""
    by_rank: list[list[dict[str, Any]] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, _groups(executor, optimizer))
    present = [groups for groups in by_rank if groups is not None]
    if not present:
        return None
    order = [parameter.tensor.name for parameter in executor.script.plan.graph.parameters]
    joined = []
    for place, group in enumerate(present[0]):
        names = {name for groups in present for name in groups[place]["params"]}
        joined.append(group | {"params": [name for name in order if name in names]})
    return joined


def _groups(executor: Executor, optimizer: Optimizer | None) -> list[dict[str, Any]] | None:
    if optimizer is None:
        return None
    names = {id(piece.parameter): piece.name for piece in executor.parameters.pieces.values()}
    return [
        group
        | {
            "params": [
                names[id(parameter)] for parameter in group["params"] if id(parameter) in names
            ]
        }
        for group in optimizer.param_groups
    ]


def _cut(
    executor: Executor, holdings: Holdings, piece: ParameterPiece, key: str, value: object
) -> object:
    """One thing that is remembered of a parameter, as a checkpoint has it."""
    if not isinstance(value, Tensor):
        return value
    if value.shape == piece.parameter.shape:
        return _sharded(executor, holdings, piece, local_part(value))
    if value.numel() == 1:
        return value
    raise InputError(
        f"the optimizer keeps {key!r} of shape {tuple(value.shape)} for {piece.name!r}, of which "
        f"this rank has {tuple(piece.parameter.shape)}",
        "save without the optimizer, or take one that keeps a number for each element",
    )


def _sharded(
    executor: Executor, holdings: Holdings, piece: ParameterPiece, kept: Tensor
) -> Sharded:
    return Sharded(
        executor.script.plan.graph.stored[piece.name].shape,
        kept,
        holdings.regions(piece.name, executor.rank),
        holdings.owned(piece.name, executor.rank),
    )


def empty_optimizer_state(
    executor: Executor, optimizer: Optimizer, metadata: Metadata, path: str
) -> dict[str, Any]:
    """Room for the state that a checkpoint has for this rank's parameters."""
    groups = [_settings(group) for group in optimizer.param_groups]
    for place, group in enumerate(groups):
        for key in group:
            if f"{GROUPS}{place}.{key}" not in metadata.state_dict_metadata:
                raise InputError(
                    f"checkpoint {path!r} has no {key!r} of parameter group {place} of a "
                    f"{type(optimizer).__name__}",
                    "give an optimizer of the kind that was saved, with the same groups",
                )
    holdings, entries = Holdings(executor.script), _entries(metadata)
    state = {
        piece.name: {
            key: _room(executor, holdings, piece, entry)
            for key, entry in entries.get(piece.name, {}).items()
        }
        for piece in _optimized(executor, optimizer)
    }
    return {"state": state, "param_groups": groups}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _entries(metadata: Metadata) -> dict[str, dict[str, object]]:
    """What a checkpoint has for each parameter."""
    entries: dict[str, dict[str, object]] = {}
    for key, entry in metadata.state_dict_metadata.items():
        if key.startswith(STATE):
            name, _, slot = key.removeprefix(STATE).rpartition(".")
            entries.setdefault(name, {})[slot] = entry
    return entries


def _room(executor: Executor, holdings: Holdings, piece: ParameterPiece, entry: object) -> object:
    if not isinstance(entry, TensorStorageMetadata):
        return None
    whole = executor.script.plan.graph.stored[piece.name].shape
    like, dtype = piece.seen.detach(), entry.properties.dtype
    if tuple(entry.size) == whole:
        return _sharded(executor, holdings, piece, torch.zeros_like(like, dtype=dtype))
    return _cut(executor, holdings, piece, "", like.new_zeros(entry.size, dtype=dtype))


def put_optimizer_state(executor: Executor, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Let an optimizer go on from what was loaded."""
    names = {id(piece.parameter): piece.name for piece in executor.parameters.pieces.values()}
    order = [
        (parameter, names.get(id(parameter)))
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    packed = optimizer.state_dict()
    packed["state"] = {
        number: {
            key: laid_out(value.kept, parameter) if isinstance(value, Sharded) else value
            for key, value in state["state"][name].items()
        }
        for number, (parameter, name) in enumerate(order)
        if state["state"].get(name)
    }
    packed["param_groups"] = [
        group | loaded
        for group, loaded in zip(packed["param_groups"], state["param_groups"], strict=True)
    ]
    optimizer.load_state_dict(packed)
