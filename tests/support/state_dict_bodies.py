"""Runs that stop under one plan and go on under another, by PyTorch's own state dicts."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from meshwright import parallelize
from meshwright.plan.plan import Plan
from support.loop_bodies import batch_of, net_of

KINDS = {
    "in pieces": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "whole": StateDictOptions(full_state_dict=True, cpu_offload=True),
}


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """No decay for the norm, which only one stage has."""
    named = dict(model.named_parameters())
    norms = [parameter for name, parameter in named.items() if "norm" in name]
    others = [parameter for name, parameter in named.items() if "norm" not in name]
    groups: list[dict[str, Any]] = [{"params": norms, "weight_decay": 0.0}, {"params": others}]
    return torch.optim.AdamW(groups, lr=0.1, foreach=True)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[float]:
    losses = []
    for step in range(first, first + 2):
        optimizer.zero_grad()
        loss = model(*batch_of(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def resumed(plans: list[tuple[Plan, Plan]]) -> list[dict[str, list[float]]]:
    """Losses of runs that stop under one plan and go on under another."""
    return [{kind: _resumed(*pair, kind) for kind in KINDS} for pair in plans]


def _resumed(one: Plan, other: Plan, kind: str) -> list[float]:
    before, options = parallelize(net_of(), one), KINDS[kind]
    optimizer = grouped(before)
    losses = steps(before, optimizer, 0)
    saved = get_state_dict(before, optimizer, options=options)
    after = parallelize(net_of(), other)
    optimizer = grouped(after)
    if options.full_state_dict:
        shared: list[Any] = [saved]
        dist.broadcast_object_list(shared)
        loaded = shared[0]
    else:
        path = [tempfile.mkdtemp()]
        dist.broadcast_object_list(path)
        state_dict_saver.save(dict(zip("mo", saved, strict=True)), checkpoint_id=path[0])
        loaded = get_state_dict(after, optimizer, options=options)
        state_dict_loader.load(dict(zip("mo", loaded, strict=True)), checkpoint_id=path[0])
    set_state_dict(
        after,
        optimizer,
        model_state_dict=loaded[0],
        optim_state_dict=loaded[1],
        options=options,
    )
    return losses + steps(after, optimizer, 2)
