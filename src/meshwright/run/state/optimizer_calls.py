"""Patched get_optimizer_state_dict and set_optimizer_state_dict for modules run by a plan. Enters:
the modules that run by plans. Leaves: PyTorch's functions, which know that other ranks may have
other parameters (pipeline stages).

PyTorch lists in a group the parameters of one rank, and a checkpoint keeps the list of one rank:
whoever loads it on other stages gets other groups. Here a group has those of all ranks, and a full
state has the states of all.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict as state_dicts
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from meshwright.base.errors import InputError


def patch_optimizer_states(known: Container[object]) -> None:
    """Have PyTorch's functions give and take optimizer states of such modules whole."""
    patched: Any = state_dicts
    get, load = patched._get_optim_state_dict, patched._load_optim_state_dict
    if hasattr(get, "knows_pieces"):
        return

    @wraps(get)
    def getting(model: Any, optimizers: tuple[Optimizer, ...], info: Any) -> Any:
        if model not in known or not info.handle_optim or dist.get_world_size() == 1:
            return get(model, optimizers, info)
        offload = info.cpu_offload and not info.full_state_dict
        whole = replace(info, flatten_optimizer_state_dict=False, cpu_offload=offload)
        state = get(model, optimizers, whole)
        _list_all_parameters(state["param_groups"])
        if info.full_state_dict:
            _take_missing(state["state"])
            if info.cpu_offload:
                state = tree_map_only(Tensor, Tensor.cpu, state) if dist.get_rank() == 0 else {}
        if info.flatten_optimizer_state_dict and state:
            state = patched._flatten_optim_state_dict(state)
        return state

    @wraps(load)
    def putting(model: Any, optimizers: tuple[Optimizer, ...], state: Any, info: Any) -> None:
        if model not in known:
            load(model, optimizers, state, info)
            return
        if info.broadcast_from_rank0:
            raise InputError(
                "broadcast_from_rank0 is asked of an optimizer of a module that runs by a plan",
                "let every rank read the state (torch.load with mmap=True keeps it in its file), "
                "or use torch.distributed.checkpoint",
            )
        # PyTorch's own asks for what this rank has.
        patched._get_optim_state_dict = get
        try:
            with _without_empty_groups(optimizers):
                load(model, optimizers, state, info)
        finally:
            patched._get_optim_state_dict = getting

    getting.knows_pieces = True  # type: ignore[attr-defined]
    patched._get_optim_state_dict, patched._load_optim_state_dict = getting, putting


def _list_all_parameters(groups: Sequence[dict[str, Any]]) -> None:
    """Have each group list the parameters that any rank has in it."""
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, [group["params"] for group in groups])
    if len({len(listed) for listed in ranks}) > 1:
        raise InputError(
            f"optimizers of a plan's ranks have {sorted({len(listed) for listed in ranks})} "
            "parameter groups",
            "make the same groups on every rank, of which some may be empty",
        )
    for group, *lists in zip(groups, *ranks, strict=True):
        group["params"] = list(dict.fromkeys(name for names in lists for name in names))


def _take_missing(states: dict[str, Any]) -> None:
    """Take the whole states of parameters that only other ranks have."""
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, list(states))
    holders = {name: rank for rank in reversed(range(len(ranks))) for name in ranks[rank]}
    for name, rank in sorted(holders.items()):
        if not all(name in names for names in ranks):
            sent = [states.get(name) if rank == dist.get_rank() else None]
            dist.broadcast_object_list(sent, src=rank)
            states.setdefault(name, sent[0])


@contextmanager
def _without_empty_groups(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Leave out groups of which this rank has no parameter, which PyTorch refuses to load."""
    before = [optimizer.param_groups for optimizer in optimizers]
    for optimizer, groups in zip(optimizers, before, strict=True):
        optimizer.param_groups = [group for group in groups if group["params"]]
    try:
        yield
    finally:
        for optimizer, groups in zip(optimizers, before, strict=True):
            loaded = iter(optimizer.param_groups)
            optimizer.param_groups = [
                next(loaded) if group["params"] else group for group in groups
            ]
