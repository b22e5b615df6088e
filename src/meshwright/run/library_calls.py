"""PyTorch's functions that look at all gradients, given a rank's pieces of them. Enters: modules
that run by a plan. Leaves: the same functions, which know such pieces.

`torch.nn.utils.clip_grad_norm_` would clip by the norm of this rank's pieces, each rank by another:
it is refused where a rank does not have all. `GradScaler` skips a step where this rank's pieces
overflow: whether any rank's do is agreed on. Both act as ever on other gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any, Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import utils
from torch.nn.utils import clip_grad

from meshwright.base.errors import InputError


class Pieced(Protocol):
    """A module whose parameters may be pieces."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those of this rank."""

    @property
    def whole_here(self) -> bool:
        """Whether this rank has all of every parameter."""


_known: WeakSet[Any] = WeakSet()


def know(module: Pieced) -> None:
    """Have PyTorch's functions know the pieces of a module."""
    if not _known:
        _teach_norms()
        _teach_scaler()
    _known.add(module)


def _owner(parameters: Iterable[object], gradients: Iterable[object] = ()) -> Any | None:
    """The module to which any of some parameters or gradients belong."""
    given = {id(own) for own in (*parameters, *gradients)}
    for module in tuple(_known):
        for own in module.parameters():
            if id(own) in given or (own.grad is not None and id(own.grad) in given):
                return module
    return None


def _teach_norms() -> None:
    total: Any = clip_grad._get_total_norm
    if hasattr(total, "knows_pieces"):
        return

    @wraps(total)
    def knowing(tensors: Any, *arguments: Any, **named: Any) -> Tensor:
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        module = _owner(listed)
        if module is not None and not module.whole_here:
            raise InputError(
                "torch.nn.utils sees only this rank's pieces of the gradients, whose norm is "
                "another one on each rank",
                "call model.clip_grad_norm_(max_norm), or model.grad_norm(), on every rank",
            )
        found: Tensor = total(listed, *arguments, **named)
        return found

    knowing.knows_pieces = True  # type: ignore[attr-defined]
    clip_grad._get_total_norm = knowing
    utils.get_total_norm = knowing


def _teach_scaler() -> None:
    taught: Any = GradScaler
    unscale: Any = taught._unscale_grads_
    if hasattr(unscale, "knows_pieces"):
        return

    @wraps(unscale)
    def knowing(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        found = unscale(scaler, optimizer, *arguments, **named)
        parameters = [own for group in optimizer.param_groups for own in group["params"]]
        if _owner(parameters) is not None and dist.get_world_size() > 1:
            _agree_on_overflow(found, parameters[0].device)
        return found

    knowing.knows_pieces = True  # type: ignore[attr-defined]
    taught._unscale_grads_ = knowing


def _agree_on_overflow(found: dict[torch.device, Tensor], device: torch.device) -> None:
    """Whether any gradient of any rank is infinite, in place."""
    own = found.setdefault(device, torch.zeros((), device=device))
    with torch.no_grad():
        dist.all_reduce(own, dist.ReduceOp.MAX)
