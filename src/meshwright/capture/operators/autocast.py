"""Automatic mixed precision (`torch.autocast`) as the casts that it makes. Enters: a node of a
traced region. Leaves: the dtypes to which its operands are cast first, or a sentence.

A trace tells of a region, not of its casts: those are PyTorch's, by lists of operators for each
device. So each call is tried on its fake tensors, once in autocast and once with its operands cast
before: if both compute by the same operators in the same dtypes, the casts are the region's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.base.errors import InputError
from meshwright.capture.operators.aten import kind_of
from meshwright.capture.operators.nodes import mutated_node, unsupported

Casts = Mapping[fx.Node, torch.dtype]
"""Of operands, by their nodes."""

RECURRENT = ("lstm", "gru", "rnn_")
"""How kinds begin whose kernels cast within, and whose fake kernels do not."""

_CAST = torch.ops.aten._to_copy.default


class Autocast(NamedTuple):
    """The settings of a region."""

    device: str
    dtype: torch.dtype


class ContextRegion(NamedTuple):
    """What a traced context manager (`wrap_with_...`) has around its operators."""

    module: fx.Node
    given: Sequence[object]
    detached: bool
    autocast: Autocast | None


def region_of(node: fx.Node, outside: Autocast | None) -> ContextRegion:
    """The region that a node stands for, within what is in force outside of it."""
    name = getattr(node.target, "__name__", str(node.target))
    if name == "wrap_with_set_grad_enabled":
        enabled, module, *arguments = node.args
        detached, autocast = not enabled, outside
    elif name == "wrap_with_autocast":
        device, dtype, enabled, _, module, *arguments = node.args
        detached, autocast = False, _in_force(node, arguments, (device, dtype, enabled), outside)
    else:
        raise unsupported(node, f"{name!r}", "compute both ways and use torch.where")
    assert isinstance(module, fx.Node)
    return ContextRegion(module, arguments, detached, autocast)


def _in_force(
    node: fx.Node,
    arguments: Iterable[object],
    asked: tuple[Any, Any, Any],
    outside: Autocast | None,
) -> Autocast | None:
    device, dtype, enabled = asked
    values = [argument.meta.get("val") for argument in arguments if isinstance(argument, fx.Node)]
    traced = {value.device.type for value in values if isinstance(value, Tensor)}
    if device in traced:
        return Autocast(device, dtype) if enabled else None
    if enabled and traced:
        raise unsupported(
            node,
            f"torch.autocast({device!r}) while its tensors lie on {'/'.join(sorted(traced))!r}",
            "write torch.autocast(x.device.type, ...), which casts wherever the model is",
        )
    return outside


def autocast_dtypes(node: fx.Node, autocast: Autocast | None) -> Casts:
    """To what a region casts the operands of a call before it computes."""
    if autocast is None:
        return {}
    assert isinstance(node.target, OpOverload)
    leaves, form = pytree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    real = [
        n
        for n, value in enumerate(values)
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    if not real:
        return {}
    if kind_of(node.target).startswith(RECURRENT):
        raise _unlike(node)
    inside, seen = _computed(node.target, values, form, autocast)
    for casts in (inside, dict.fromkeys(real, autocast.dtype)):
        cast = [value.to(casts[n]) if n in casts else value for n, value in enumerate(values)]
        if _computed(node.target, cast, form, None)[1] == seen:
            break
    else:
        raise _unlike(node)
    node_casts = {leaves[n]: dtype for n, dtype in casts.items() if values[n].dtype != dtype}
    if mutated_node(node) in node_casts:
        raise _unlike(node)
    return node_casts


def refuse_autocast_casts(node: fx.Node, autocast: Autocast | None) -> None:
    """Refuse a call that is taken apart, if a region casts for it."""
    if autocast_dtypes(node, autocast):
        raise _unlike(node)


def _unlike(node: fx.Node) -> InputError:
    assert isinstance(node.target, OpOverload)
    return unsupported(
        node,
        f"{kind_of(node.target)!r} in a region of torch.autocast, which casts inside of it",
        "end the region before it, or cast its operands yourself",
    )


def _computed(
    overload: OpOverload, values: Sequence[object], form: pytree.TreeSpec, autocast: Autocast | None
) -> tuple[dict[int, torch.dtype], list[object]]:
    """To what operands were cast, by their places, and what was computed in which dtypes."""
    fake = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    region: AbstractContextManager[Any] = nullcontext()
    if autocast is not None:
        region = torch.autocast(autocast.device, autocast.dtype, cache_enabled=False)
    args, named = pytree.tree_unflatten(list(values), form)
    with torch.no_grad(), fake, region, _Seen() as seen:
        overload(*args, **named)
    places = {id(value): n for n, value in enumerate(values) if isinstance(value, Tensor)}
    casts = {places[key]: dtype for key, dtype in seen.casts if key in places}
    return casts, seen.computed


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that a call runs: casts, and what else computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: list[tuple[int, torch.dtype]] = []
        self.computed: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if func is _CAST:
            self.casts.append((id(args[0]), result.dtype))
        elif tensors and not func.is_view:
            self.computed.append((func, tuple(tensor.dtype for tensor in tensors)))
        return result
