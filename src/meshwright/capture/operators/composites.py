"""Decomposition of composite operators (CompositeImplicitAutograd, `torch._decomp`). Enters: a
traced call that no family tells about. Leaves: the calls that PyTorch itself makes of it, as a
graph, or None where they would tell no more.

PyTorch defines many operators by others (its key CompositeImplicitAutograd), and their derivatives
are those of the parts: `numpy_T` is `permute`, `type_as` is `to`, `fft_rfft` pads and calls
`_fft_r2c`. Others have a kernel of their own and a definition beside it (`torch._decomp`), of which
`DEFINED` names those that are taken apart. A call is taken apart only if families tell about every
part; otherwise it stays whole, as an operator of which samples may prove to be independent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from meshwright.capture.operators.aten import kind_of, overloads
from meshwright.graph.families import BUILT_IN

DEFINED = (
    "affine_grid_generator", "block_diag", "channel_shuffle", "diag_embed", "diagonal_copy", "glu",
    "isin", "multi_margin_loss", "pixel_shuffle", "pixel_unshuffle", "rot90", "soft_margin_loss",
    "_weight_norm_interface",
)  # fmt: skip
"""Kinds with a kernel and a definition of which the definition is used."""

HANDLED = {"copy", "fill", "zero"}
"""Kinds that no family tells about since a capture turns them into others."""

_SAME = ("nn_module_stack", "stack_trace")
"""What the parts of a call share with it."""


class Composites:
    """Definitions of calls, each traced once."""

    def __init__(self) -> None:
        self._known: dict[object, fx.Graph | None] = {}

    def parts(self, node: fx.Node) -> fx.Graph | None:
        """The graph that a node's call is short for, its inputs the node's in their order."""
        overload = node.target
        assert isinstance(overload, OpOverload)
        if not _is_taken_apart(node, overload):
            return None
        leaves, form = pytree.tree_flatten((node.args, node.kwargs))
        if not all(_is_plain(leaf) for leaf in leaves) or not node.all_input_nodes:
            return None
        key = (overload, str(form), tuple(map(_told, leaves)))
        if key not in self._known:
            self._known[key] = _traced(overload, leaves, form)
        graph = self._known[key]
        return None if graph is None else _copied(graph, node)


def arguments_of(node: fx.Node) -> list[fx.Node]:
    """The nodes that enter a call, one for each place where one stands."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _is_taken_apart(node: fx.Node, overload: OpOverload) -> bool:
    kind = kind_of(overload)
    if kind == "index_put":
        return _has_mask(node.args[1])
    return kind not in BUILT_IN and (
        kind in OWN or _is_composite(overload) or _is_defined(overload)
    )


def _has_mask(indices: object) -> bool:
    leaves = pytree.tree_leaves(indices)
    return any(
        isinstance(leaf, fx.Node) and leaf.meta["val"].dtype is torch.bool for leaf in leaves
    )


def _is_composite(overload: OpOverload) -> bool:
    """Whether PyTorch's own library defines it by others; what users define stays theirs."""
    schema, key = overload._schema, "CompositeImplicitAutograd"
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    return overload.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        name, key
    )


def _is_defined(overload: OpOverload) -> bool:
    return kind_of(overload) in DEFINED and overload in decomposition_table


@cache
def _definitions() -> Mapping[OpOverload, Callable[..., object]]:
    """PyTorch's definitions of the kinds that are taken apart."""
    known = (overload for kind in DEFINED for overload in overloads(kind))
    return {
        overload: decomposition_table[overload]
        for overload in known
        if overload in decomposition_table
    }


def _is_plain(leaf: object) -> bool:
    """Whether an argument is a tensor, or a value that is known when tracing."""
    if isinstance(leaf, fx.Node):
        return isinstance(leaf.meta.get("val"), FakeTensor)
    return True


def _told(leaf: object) -> object:
    if isinstance(leaf, fx.Node):
        value = leaf.meta["val"]
        return value.dtype, tuple(value.shape), value.stride()
    return type(leaf), str(leaf)


def _traced(overload: OpOverload, leaves: list[Any], form: pytree.TreeSpec) -> fx.Graph | None:
    """What the call does, if every part of it has a family."""
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
    definition: Callable[..., object] = OWN.get(kind_of(overload), overload)

    def call(*tensors: Tensor) -> object:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = pytree.tree_unflatten(filled, form)
        return definition(*positional, **named)

    values = [leaves[place].meta["val"] for place in places]
    if any(not isinstance(size, int) for value in values for size in value.shape):
        return None
    learns = _is_composite(overload) and not overload._schema.is_mutable
    try:
        with values[0].fake_mode, torch.enable_grad():
            fresh = [_fresh(value, learns=learns) for value in values]
            graph = make_fx(call, decomposition_table=dict(_definitions()))(*fresh).graph
    except Exception:
        # Whatever a definition of PyTorch's raises on fake tensors: the call stays whole.
        return None
    graph.eliminate_dead_code()
    return graph if all(map(_has_family, graph.nodes)) else None


def _fresh(value: Tensor, *, learns: bool) -> Tensor:
    """A tensor of the same form, perhaps one that is learnt: composites look whether it is, others
    refuse targets that are.
    """
    tensor = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )
    return tensor.requires_grad_(learns and (tensor.is_floating_point() or tensor.is_complex()))


def _has_family(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        kind = kind_of(node.target)
        return kind in BUILT_IN or kind in HANDLED
    return node.target is operator.getitem


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Graph:
    """A graph of the same calls that stand where a node stands."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    for part in copy.nodes:
        part.meta |= {key: node.meta[key] for key in _SAME if key in node.meta}
    return copy


def _stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Frames times a window, transformed; PyTorch's definition takes them by strides."""
    rows = x if x.dim() == 2 else x[None]
    frames = rows.unfold(1, n_fft, hop_length or n_fft // 4)
    length = win_length or n_fft
    if window is None and length < n_fft:
        window = x.new_ones(length)
    if window is not None:
        before = (n_fft - length) // 2
        frames = frames * functional.pad(window, (before, n_fft - length - before))
    half = not frames.is_complex() if onesided is None else onesided
    transform = torch.fft.rfft if half else torch.fft.fft
    spectrum = transform(frames, norm="ortho" if normalized else None).transpose(1, 2)
    spectrum = spectrum if return_complex else torch.view_as_real(spectrum)
    return spectrum if x.dim() == 2 else spectrum[0]


def _fill_diagonal(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Of a matrix that is not wrapped."""
    if x.dim() != 2 or wrap:
        raise NotImplementedError
    return x.masked_fill(torch.eye(*x.shape, dtype=torch.bool, device=x.device), fill_value)


def _put_under_mask(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """x[:, mask] = values, where values are the same for all that the mask selects."""
    *before, mask = indices
    after = x.dim() - len(before) - (0 if mask is None else mask.dim())
    if (
        mask is None
        or any(index is not None for index in before)
        or values.dim() > after
        or accumulate
    ):
        raise NotImplementedError
    return torch.where(mask.reshape(*(1,) * len(before), *mask.shape, *(1,) * after), values, x)


OWN: Mapping[str, Callable[..., object]] = {
    "stft": _stft,
    "fill_diagonal": _fill_diagonal,
    "index_put": _put_under_mask,
}
"""Our definitions, where PyTorch's has parts without a family."""
