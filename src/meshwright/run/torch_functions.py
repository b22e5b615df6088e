"""Patched clip_grad_norm_, GradScaler and state_dict functions for modules run by a plan. Enters:
modules that run by a plan. Leaves: the same functions, which know such modules.

- `clip_grad_norm_` and `get_total_norm` of all of a module's gradients give the norm of all ranks,
  whatever the plan; of some of them PyTorch's own where it is right, and else a sentence.
- `GradScaler` skips a step on all ranks if one rank's gradients overflow.
- `get_model_state_dict` and `set_model_state_dict` of a full state mean all of the model, also
  where stages are on other ranks; those of optimizers are in `run.state.optimizer_calls`.
- An optimizer that was made from the plain model's parameters, which get no gradients, is refused
  when it is asked for a step, in which it would do nothing; so is L-BFGS across stages.
- `torch.autograd.grad` with respect to parameters, which only `backward` gives, is refused.
- DistributedDataParallel around such a module is refused.
- Operators of DTensors are in `run.state.dtensor_calls`.

All act as ever on what belongs to other modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import wraps
from typing import Any, Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.checkpoint import state_dict as state_dicts
from torch.distributed.tensor import DTensor, Shard
from torch.nn import utils
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import LBFGS, Adafactor, Rprop
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from meshwright.base.errors import InputError
from meshwright.run.exec.parameters import local_part
from meshwright.run.state.dtensor_calls import patch_dtensors
from meshwright.run.state.gradient_norms import TINY
from meshwright.run.state.optimizer_calls import patch_optimizer_states


class PiecedTensor(Protocol):
    """A module whose parameters may be pieces."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those of this rank."""

    def grad_norm(self, norm_type: float = 2.0, *, error_if_nonfinite: bool = False) -> Tensor:
        """Of all gradients, on all ranks."""

    def whole_state(self, *, to_rank: int | None = 0) -> dict[str, Tensor] | None:
        """The plain model's state."""

    def load_whole_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over the plain model's state."""

    @property
    def norms_of_some(self) -> bool:
        """Whether PyTorch's own norm of some gradients is right."""


_known: WeakSet[Any] = WeakSet()
_left: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Parameters of plain models that modules were made of."""


def patch_torch_functions(module: PiecedTensor, instead_of: nn.Module) -> None:
    """Have PyTorch's functions know the pieces of a module, which a plain one was made into."""
    if not _known:
        _teach_norms()
        _teach_scaler()
        _teach_states()
        patch_optimizer_states(_known)
        _teach_gradients()
        _teach_wrappers()
        patch_dtensors()
        _teach_optimizers()
    _known.add(module)
    for parameter in instead_of.parameters():
        _left[parameter] = True


def _teach_optimizers() -> None:
    if _refuse_steps not in _global_optimizer_pre_hooks.values():
        register_optimizer_step_pre_hook(_refuse_steps)


def _refuse_steps(optimizer: Optimizer, *_: object) -> None:
    stepping = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(parameter.grad is None for parameter in stepping) and any(
        parameter in _left for parameter in stepping
    ):
        raise InputError(
            "an optimizer steps over the parameters of a model that was given to parallelize, "
            "which have no gradients: those of the plan's module are others",
            "make optimizers from the parameters of what parallelize returns",
        )
    if isinstance(optimizer, LBFGS):
        module = _owner(stepping)
        if module is not None and not module.norms_of_some:
            raise InputError(
                "L-BFGS takes products over all parameters, and ranks of this plan have some that "
                "others do not have",
                "plan without pipeline stages and idle devices, or take another optimizer",
            )
    unevenly = isinstance(optimizer, LBFGS)
    if isinstance(optimizer, (LBFGS, Adafactor, Rprop)) and any(
        _is_cut(parameter, unevenly=unevenly) for parameter in stepping
    ):
        raise InputError(
            f"{type(optimizer).__name__} asks of parameters that are cut over ranks"
            f"{' in unequal pieces' if unevenly else ''} what PyTorch's DTensors cannot do",
            "plan with whole parameters (dp over all devices, --fix zero=0), or take another "
            "optimizer",
        )


def _is_cut(parameter: Tensor, *, unevenly: bool) -> bool:
    """Whether a parameter is cut over ranks, or cut in pieces of unequal size."""
    if not isinstance(parameter, DTensor):
        return False
    return any(
        isinstance(placement, Shard) and (not unevenly or parameter.shape[placement.dim] % ranks)
        for placement, ranks in zip(parameter.placements, parameter.device_mesh.shape, strict=True)
    )


def _owner(parameters: Iterable[object], gradients: Iterable[object] = ()) -> Any | None:
    """The module to which any of some parameters or gradients belong."""
    ids = {id(tensor) for tensor in (*parameters, *gradients)}
    for module in tuple(_known):
        for parameter in module.parameters():
            if id(parameter) in ids or (parameter.grad is not None and id(parameter.grad) in ids):
                return module
    return None


def _teach_norms() -> None:
    total: Any = clip_grad._get_total_norm
    if hasattr(total, "knows_pieces"):
        return

    @wraps(total)
    def knowing(
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        module = _owner(listed)
        whole = module is not None and _all_of(module, listed)
        if module is None or (module.norms_of_some and not whole):
            local_norm: Tensor = total(listed, norm_type, error_if_nonfinite, foreach)
            return local_norm
        if not whole:
            raise InputError(
                "torch.nn.utils was given some of a plan's gradients, or others with them, and "
                "ranks that have none of these would not take part in their norm",
                "give it all of model.parameters(), on every rank",
            )
        norm: Tensor = module.grad_norm(norm_type, error_if_nonfinite=error_if_nonfinite)
        return norm

    knowing.knows_pieces = True  # type: ignore[attr-defined]
    clip_grad._get_total_norm = knowing
    utils.get_total_norm = knowing
    _teach_scaling()


def _teach_scaling() -> None:
    """Have gradients of several meshes (stages) scaled, which one call on DTensors cannot do."""
    scale: Any = clip_grad._clip_grads_with_norm_

    @wraps(scale)
    def scaling(
        parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
    ) -> None:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if _owner(listed) is None:
            scale(listed, max_norm, total_norm, foreach)
            return
        norm = total_norm.full_tensor() if isinstance(total_norm, DTensor) else total_norm
        with torch.no_grad():
            local = [
                local_part(parameter.grad) for parameter in listed if parameter.grad is not None
            ]
            rate = torch.clamp(float(max_norm) / (norm + TINY), max=1.0)
            for gradient in local:
                gradient.mul_(rate.to(gradient.device, gradient.dtype))

    clip_grad._clip_grads_with_norm_ = scaling
    utils.clip_grads_with_norm_ = scaling


def _all_of(module: Any, gradients: Iterable[object]) -> bool:
    """Whether gradients are those that a module's parameters have, each once."""
    ids = [id(p.grad) for p in module.parameters() if p.grad is not None]
    return sorted(ids) == sorted(id(gradient) for gradient in gradients)


def _teach_scaler() -> None:
    taught: Any = GradScaler
    unscale: Any = taught._unscale_grads_
    if hasattr(unscale, "knows_pieces"):
        return

    @wraps(unscale)
    def knowing(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        overflows = unscale(scaler, optimizer, *arguments, **named)
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        if _owner(parameters) is not None and dist.get_world_size() > 1:
            _agree_on_overflow(overflows, parameters[0].device)
        return overflows

    knowing.knows_pieces = True  # type: ignore[attr-defined]
    taught._unscale_grads_ = knowing


def _agree_on_overflow(overflows: dict[torch.device, Tensor], device: torch.device) -> None:
    """Whether any gradient of any rank is infinite, in place."""
    overflow = overflows.setdefault(device, torch.zeros((), device=device))
    with torch.no_grad():
        dist.all_reduce(overflow, dist.ReduceOp.MAX)


def _teach_states() -> None:
    taught: Any = state_dicts
    get, put = taught._get_model_state_dict, taught._load_model_state_dict
    if hasattr(get, "knows_pieces"):
        return

    @wraps(get)
    def getting(model: Any, info: Any) -> Any:
        if model not in _known or not info.full_state_dict:
            return get(model, info)
        state = model.whole_state(to_rank=0 if info.cpu_offload else None)
        kept = {} if state is None else state
        if info.ignore_frozen_params:
            raise InputError(
                "ignore_frozen_params is asked of a full state", "leave frozen ones out of it after"
            )
        return kept

    @wraps(put)
    def putting(model: Any, state: Any, info: Any) -> Any:
        if model not in _known or not (info.full_state_dict or info.broadcast_from_rank0):
            return put(model, state, info)
        if info.broadcast_from_rank0:
            raise InputError(
                "broadcast_from_rank0 is asked of a module that runs by a plan",
                "let every rank read the state (torch.load with mmap=True keeps it in its file), "
                "or use torch.distributed.checkpoint",
            )
        model.load_whole_state(state)
        return taught._IncompatibleKeys([], [])

    getting.knows_pieces = True  # type: ignore[attr-defined]
    taught._get_model_state_dict, taught._load_model_state_dict = getting, putting


def _teach_wrappers() -> None:
    wrapper: Any = DistributedDataParallel
    begin = wrapper.__init__

    @wraps(begin)
    def knowing(instance: Any, module: Any, *arguments: Any, **named: Any) -> None:
        if any(inner in _known for inner in module.modules()):
            raise InputError(
                "DistributedDataParallel is put around a module that runs by a plan, which reduces "
                "its gradients itself",
                "train what parallelize returns as it is",
            )
        begin(instance, module, *arguments, **named)

    wrapper.__init__ = knowing


def _teach_gradients() -> None:
    grad: Any = torch.autograd.grad
    if hasattr(grad, "knows_pieces"):
        return

    @wraps(grad)
    def knowing(outputs: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        listed = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        if _owner(listed) is not None:
            raise InputError(
                "torch.autograd.grad is asked for gradients of a plan's parameters, which its "
                "backward pass hands out",
                "call backward() on the loss, and read each parameter's grad",
            )
        return grad(outputs, inputs, *arguments, **named)

    knowing.knows_pieces = True  # type: ignore[attr-defined]
    torch.autograd.grad = knowing
