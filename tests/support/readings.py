"""Which operator of the rule language a call is, for the kinds that tests of sharded runs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.graph.model import Call
from meshwright.rewrite.types import PARALLEL

KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PARALLEL, ("axis", "degree")),
    "pipeline": ("axis", "count"),
    "batch": ("axis", "count"),
    "halo": ("axis", "before", "after"),
    "transpose": ("dim0", "dim1"),
    "cat": ("dim",),
}

NAMES: Mapping[tuple[str, int], str] = {
    ("linear", 3): "linear_bias",
    ("conv2d", 3): "conv2d_bias",
    ("cat", 2): "concat",
    ("_grouped_mm", 3): "experts",
    ("scaled_dot_product_attention", 3): "attention",
}


class Reading(NamedTuple):
    """An operator of the rule language; its operands are the inputs in this order."""

    operator: str
    settings: tuple[Any, ...]
    order: tuple[int, ...]


def read(call: Call) -> Reading | None:
    """The operator that a call is; None for a dropout."""
    order = tuple(range(len(call.inputs)))
    operator = NAMES.get((call.kind, len(order)), call.kind)
    settings: tuple[Any, ...] = tuple(call[key] for key in KEYS.get(call.kind, ()))
    shapes = [spec.shape for spec in call.inputs if spec is not None]
    match call.kind:
        case "dropout":
            return None
        case "add" if len(shapes[1]) == 1:
            operator = "bias"
        case "conv2d":
            stride, padding = call.get("stride", (1, 1)), call.get("padding", (0, 0))
            assert isinstance(stride, tuple)
            assert isinstance(padding, tuple)
            settings = (stride[0], padding[0])
        case "layer_norm":
            settings = (call.get("eps", 1e-5),)
        case "scaled_dot_product_attention":
            settings = (call.get("is_causal", False),)
        case "embedding" | "embedding_bag":
            order = (1, 0)
        case "split_with_sizes":
            sizes = call["split_sizes"]
            assert isinstance(sizes, tuple)
            operator, settings = "split", (call["dim"], *sizes[:-1])
        case "view":
            before, after = shapes[0], call.outputs[0].shape
            dim = next(d for d, (n, m) in enumerate(zip(before, after, strict=False)) if n != m)
            joins = len(before) > len(after)
            operator = "flatten" if joins else "unflatten"
            settings = (dim,) if joins else (dim, after[dim])
    return Reading(operator, settings, order)
