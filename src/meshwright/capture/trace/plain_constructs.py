"""Higher-order constructs (vmap, flex_attention, torch.compile) traced as plain operators.

Enters: nothing, it is a context. Leaves: PyTorch as it was. `torch.vmap` and `flex_attention` are
traced into the operators over whole batches that they compute by; `torch.compile` compiles nothing;
checks of values become assertions, which guards judge in every step; SyncBatchNorm normalises the
batch that it sees, which is the whole one: a plan's statistics are of all samples anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import apis
from torch._functorch.vmap import vmap_impl
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.nn import functional
from torch.nn.attention import flex_attention
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from meshwright.capture.trace.attention_masks import training_mask_patches


@contextmanager
def higher_order_constructs_replaced() -> Iterator[None]:
    """Trace within."""
    replaced = (*_REPLACED, *training_mask_patches())
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _vmapped(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """What `vmap` computes, as one graph of operators over the whole batch, run here."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    shape: list[pytree.TreeSpec] = []

    def flat(*operands: Tensor) -> list[Any]:
        values = iter(operands)
        filled = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        own_args, own_kwargs = pytree.tree_unflatten(filled, form)
        with _replaced(apis, "vmap_impl", vmap_impl):
            result = vmap_impl(
                func, in_dims, out_dims, randomness, chunk_size, *own_args, **own_kwargs
            )
        outputs, out_form = pytree.tree_flatten(result)
        shape.append(out_form)
        return outputs

    # A trace of its own: the one around it must not see tensors without their batch.
    with torch._C.DisableTorchFunction(), disable_proxy_modes_tracing():
        operators = make_fx(flat)(*tensors)
    return pytree.tree_unflatten(operators(*tensors), shape[-1])


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Any,
    scale: float,
    kernel_options: Any,
) -> Any:
    return math_attention(query, key, value, score_mod, block_mask, scale, kernel_options)


def _check_with(error_type: type[Exception], condition: Any, message: Any) -> None:
    """A check; of what is read out of tensors an assertion, where PyTorch's own refuses."""
    if isinstance(condition, Tensor):
        torch._assert(condition, "" if message is None else str(message()))  # type: ignore[no-untyped-call]
    else:
        _CHECK_WITH(error_type, condition, message)


def _to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """A module moved; one that is there already is left alone, which fake tensors cannot be."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    tensors = [*module.parameters(), *module.buffers()]
    if all(
        device in (None, tensor.device)
        and (dtype in (None, tensor.dtype) or not tensor.is_floating_point())
        for tensor in tensors
    ):
        return module
    return _TO(module, *args, **kwargs)


def _gaussian_nll(
    input: Tensor,  # noqa: A002
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Without PyTorch's write into the variance, through which the gradient goes all the same."""
    variance = var * torch.ones_like(input) if isinstance(var, float) else var
    if (variance < 0).any():
        raise ValueError("var has negative entry/entries")
    if variance.dim() < input.dim():
        variance = variance.unsqueeze(-1)
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    match reduction:
        case "mean":
            return loss.mean()
        case "sum":
            return loss.sum()
        case _:
            return loss


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_CHECK_WITH, _TO = torch._check_with, nn.Module.to

_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch, "_check_with", _check_with),
    (nn.Module, "to", _to),
    (nn.SyncBatchNorm, "forward", _BatchNorm.forward),
    (apis, "vmap_impl", _vmapped),
    (functional, "gaussian_nll_loss", _gaussian_nll),
    (flex_attention, "_validate_device", lambda *_: None),
    (flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
    (flex_attention, "flex_attention_hop", _flex),
)
