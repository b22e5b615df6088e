"""Random operands for an operator call that is to be profiled. Enters: a call. Leaves: tensors it
can run on.

Real numbers are normal, since zeros run faster than data; whole numbers are valid wherever a kind
takes them as positions: a wrong one would end the whole process on a GPU. Nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from meshwright.capture.execution.shard_kernels import Operands
from meshwright.graph.counts import is_differentiable
from meshwright.graph.expert_body import local_expert_count
from meshwright.graph.families import family_of
from meshwright.graph.family import Wanted, integer, position, tensor
from meshwright.graph.operator_graph import Call, Spec

ONLY_FIRST = {
    *("cross_entropy_loss", "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("huber_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
"""Losses: targets and weights of classes are data."""

FIRST_THREE = {"batch_norm", "instance_norm", "scaled_dot_product_attention"}
"""Running statistics and masks are never learnt, and asking for it would change the kernel."""

NOT_FIRST = {"igamma", "igammac", "special_zeta"}
"""Kinds of which PyTorch knows no derivative by the first operand."""

PROBABILITIES = {"binary_cross_entropy"}
"""Kinds that refuse numbers outside 0 to 1."""

POSITIVE_DEFINITE = {"linalg_cholesky", "linalg_cholesky_ex"}
"""Kinds that refuse other matrices."""


def drawn(call: Call, device: torch.device, seed: int = 0) -> Operands:
    """A tensor for each input; those that can have a gradient ask for it.

    >>> table, indices = Spec("float32", (3, 2)), Spec("int64", (4,))
    >>> out = Spec("float32", (4, 2))
    >>> call = Call(kind="embedding", inputs=(table, indices), outputs=(out,))
    >>> [t.requires_grad for t in drawn(call, torch.device("cpu"))]
    [True, False]
    """
    generator = torch.Generator(device).manual_seed(seed)
    learning = learns(call)
    return tuple(
        None if spec is None else _drawn(call, index, spec, generator).requires_grad_(learnable)
        for index, (spec, learnable) in enumerate(zip(call.inputs, learning, strict=True))
    )


def learns(call: Call) -> Wanted:
    """For each input whether a measured backward pass makes its gradient."""
    count = 1 if call.kind in ONLY_FIRST else 3 if call.kind in FIRST_THREE else len(call.inputs)
    first = 1 if call.kind in NOT_FIRST else 0
    flows = family_of(call).differentiable
    return tuple(
        flows and first <= index < count and spec is not None and is_differentiable(spec.dtype)
        for index, spec in enumerate(call.inputs)
    )


def _drawn(call: Call, index: int, spec: Spec, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    device = generator.device
    if dtype == torch.bool:
        return torch.rand(spec.shape, device=device, generator=generator) > 0.5
    if not is_differentiable(spec.dtype):
        return _whole(call, index, spec, generator).to(dtype)
    if call.kind in PROBABILITIES:
        return torch.rand(spec.shape, device=device, generator=generator).to(dtype)
    # What is made contiguous was not: its last two dims lie the other way round.
    turned = call.kind == "contiguous" and len(spec.shape) > 1
    shape = (*spec.shape[:-2], *reversed(spec.shape[-2:])) if turned else spec.shape
    values = torch.randn(shape, device=device, generator=generator).to(dtype)
    if call.kind in POSITIVE_DEFINITE:
        return values @ values.mH + torch.eye(spec.shape[-1], dtype=dtype, device=device)
    return values.transpose(-1, -2) if turned else values


def _whole(call: Call, index: int, spec: Spec, generator: torch.Generator) -> Tensor:
    """Positions below a bound, ends of sections, or ones: never a division by 0."""
    sections = SECTIONS.get((call.kind, index))
    if sections is not None:
        return sections(call, torch.arange(spec.elements, device=generator.device))
    bound = BOUNDS.get(call.kind)
    below = bound(call, index) if bound is not None else None
    if below is None:
        return torch.ones(spec.shape, dtype=torch.int64, device=generator.device)
    return torch.randint(0, max(below, 1), spec.shape, device=generator.device, generator=generator)


def _rows(call: Call, index: int) -> int | None:
    return tensor(call, 0).shape[0] if index == 1 else None


def _along_dim(call: Call, index: int) -> int | None:
    shape = tensor(call, 0).shape
    if index != 1:
        return None
    return shape[position(integer(call, "dim"), len(shape))] if shape else 1


def _own_dim(call: Call, index: int) -> int | None:
    shape = tensor(call, 0).shape
    return shape[index - 1] if 1 <= index <= len(shape) else None


def _classes(call: Call, index: int) -> int | None:
    shape = tensor(call, 0).shape
    return shape[min(1, len(shape) - 1)] if index == 1 else None


def _classes_asked(call: Call, index: int) -> int | None:
    return integer(call, "num_classes")


def _experts_held(call: Call, index: int) -> int | None:
    return local_expert_count(call) if index == 1 else None


BOUNDS: Mapping[str, Callable[[Call, int], int | None]] = {
    "embedding": _rows,
    "embedding_bag": _rows,
    **dict.fromkeys(("gather", "scatter", "scatter_add", "index_select", "index_add"), _along_dim),
    **dict.fromkeys(("index", "index_put"), _own_dim),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), _classes),
    "one_hot": _classes_asked,
    "routed_experts": _experts_held,
}
"""What the whole numbers of an input must stay below."""


def _equal_bags(call: Call, counting: Tensor) -> Tensor:
    return counting * tensor(call, 1).elements // max(len(counting), 1)


def _equal_groups(call: Call, counting: Tensor) -> Tensor:
    return (counting + 1) * tensor(call, 0).shape[0] // max(len(counting), 1)


SECTIONS: Mapping[tuple[str, int], Callable[[Call, Tensor], Tensor]] = {
    ("embedding_bag", 2): _equal_bags,
    ("_grouped_mm", 2): _equal_groups,
}
"""Inputs that say where sections of another one begin or end; sections are equal."""
